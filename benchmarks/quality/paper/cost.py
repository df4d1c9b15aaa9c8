"""Cost of measuring the change, by window and by model."""

from collections.abc import Callable, Iterator
import functools
import statistics

import jax
import jax.numpy as jnp
import optax

from benchmarks import variants
from benchmarks.quality.paper.claim import (
  about,
  BETTER,
  Claim,
  found,
  Judge,
  Range,
)
from benchmarks.speed import overhead
import selsync_jax as ss

REPEATS = 3
STEPS, ROUNDS = 10, 5
MODELS = {
  'small': (1_000_000, 22),
  'ResNet101': (44_549_160, 314),
  'VGG11': (132_863_336, 22),
  'AlexNet': (61_100_840, 16),
  'Transformer': (107_845_735, 27),
}
"""Parameters and number of arrays; the paper's models are our versions, with
1,000 labels and with the 267,735 words of WikiText-103."""
WINDOWS = 25, 200
SLOWER = {'ResNet101': 53, 'VGG11': 110, 'AlexNet': 79, 'Transformer': 178}
"""Cost of a window of 200 relative to 25 in the paper, in percent."""


def windowed(
  length: int, smoothing: float = 0.16
) -> optax.GradientTransformation:
  """Measures the change of a weighted mean over a window, like the paper."""
  weights = smoothing * (1 - smoothing) ** jnp.arange(length)

  def init(params):
    return jnp.zeros(length), jnp.float32(0), jnp.float32(0)

  def update(updates, state, params=None):
    norms = jnp.roll(state[0], 1)
    norms = norms.at[0].set(optax.tree.norm(updates, squared=True))
    mean, past = weights @ norms, state[1]
    return updates, (norms, mean, jnp.abs(mean - past) / past)

  return optax.GradientTransformation(init, update)


def measuring(
  meter: optax.GradientTransformation, grads: list[jax.Array]
) -> Callable[[int], None]:
  """Returns `run(steps)`, which only measures, always the same gradients."""
  update = jax.jit(lambda grads, state: meter.update(grads, state)[1])
  state = meter.init(grads)

  def run(steps: int) -> None:
    nonlocal state
    for _ in range(steps):
      state = update(grads, state)
    jax.block_until_ready(state)

  return run


@functools.cache
def measured(model: str) -> dict[str, list[float]]:
  """Returns the milliseconds of each meter, one value for every repeat.

  The model's gradients are in arrays of equal size.
  """
  meters = {f'window {length}': windowed(length) for length in WINDOWS}
  meters['recursive'] = ss.measure()
  size, arrays = MODELS[model]
  grads = [jnp.ones(size // arrays, jnp.float32) for _ in range(arrays)]
  runs = {name: measuring(meter, grads) for name, meter in meters.items()}
  times: dict[str, list[float]] = {name: [] for name in runs}
  for _ in range(REPEATS):
    timed = variants.time_interleaved(runs, STEPS, ROUNDS)
    for name, seconds in timed.items():
      times[name].append(1e3 * statistics.median(seconds))
  return times


@functools.cache
def compressed() -> list[dict]:
  """Returns the cost of a step with each reducer, one row for every repeat."""
  return [overhead.reducers_row(1, STEPS, ROUNDS) for _ in range(REPEATS)]


def _judge(one: tuple[str, str], other: tuple[str, str], rule: Range) -> Judge:
  """Returns a judge of a ratio of times, each of a model and a meter."""

  def judge(groups):
    first, second = (measured(model)[meter] for model, meter in (one, other))
    parts = [f'{statistics.median(times):.3g}' for times in (first, second)]
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    return found('{} ms', parts, ratios, rule, '.2f')

  return judge


def _cheaper(name: str) -> Judge:
  def judge(groups):
    rows = compressed()
    parts = [
      f'{statistics.median(row[n] for row in rows):.2f}'
      for n in (name, 'top_k')
    ]
    less = [row['top_k'] - row[name] for row in rows]
    return found('{} local steps', parts, less, BETTER, '+.2f')

  return judge


def claims() -> Iterator[Claim]:
  """Yields the claims about the cost of a measurement and of a selection."""
  for i, (model, more) in enumerate(SLOWER.items()):
    text = 'A window of 200 costs at least half more than one of 25 with {}'
    yield Claim(
      (text if i == 0 else 'The same with {}').format(model),
      f'+{more}%',
      _judge((model, 'window 200'), (model, 'window 25'), Range(low=1.5)),
    )
  yield Claim(
    'One of 25 costs as much as a recursive mean with a million parameters '
    '(ours)',
    '',
    _judge(('small', 'window 25'), ('small', 'recursive'), about(1)),
  )
  yield Claim(
    'It costs more with ResNet101, of 44.5 million parameters, than with '
    'VGG11, of 132.9 million',
    '17, 3.1 ms',
    _judge(('ResNet101', 'window 25'), ('VGG11', 'window 25'), Range(low=1)),
  )
  for name, words in (('micro', 'MiCRO'), ('exdyna', 'ExDyna')):
    yield Claim(
      f"A step with {words}'s selection is shorter than with top-k's",
      '',
      _cheaper(name),
    )
