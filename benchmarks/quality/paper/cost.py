"""What the measurement of the change costs, by window and by model."""

from collections.abc import Callable, Iterator
import functools
import statistics

import jax
import jax.numpy as jnp
import optax

from benchmarks import variants
from benchmarks.quality.paper.claim import about
from benchmarks.quality.paper.claim import BETTER
from benchmarks.quality.paper.claim import Claim
from benchmarks.quality.paper.claim import found
from benchmarks.quality.paper.claim import Judge
from benchmarks.quality.paper.claim import Range
from benchmarks.speed import overhead
import selsync_jax as ss

REPEATS = 3
STEPS, ROUNDS = 10, 5
MODELS = {'ResNet101': (44_500_000, 314), 'VGG11': (132_900_000, 22)}
"""Parameters, and the arrays that they are in."""
SMALL = 1_000_000, 22
WINDOWS = 25, 200
SLOWER = {'ResNet101': 53, 'VGG11': 110, 'AlexNet': 79, 'Transformer': 178}
"""In percent, the paper's figures for a window of 200 in place of 25."""


def windowed(
  length: int, smoothing: float = 0.16
) -> optax.GradientTransformation:
  """Measures the change of a weighted mean over a window, as the paper does."""
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
  meter: optax.GradientTransformation, size: int, arrays: int
) -> Callable[[int], None]:
  """Returns `run(steps)`: a measurement alone, of gradients in equal arrays."""
  grads = [jnp.ones(size // arrays, jnp.float32) for _ in range(arrays)]
  update = jax.jit(lambda grads, state: meter.update(grads, state)[1])
  state = meter.init(grads)

  def run(steps: int) -> None:
    nonlocal state
    for _ in range(steps):
      state = update(grads, state)
    jax.block_until_ready(state)

  return run


@functools.cache
def measured() -> dict[str, list[float]]:
  """Returns the milliseconds of each measurement, one for every repeat."""
  runs: dict[str, Callable[[int], None]] = {
    f'window {w}': measuring(windowed(w), *SMALL) for w in WINDOWS
  }
  runs['recursive'] = measuring(ss.measure(), *SMALL)
  for name, (size, arrays) in MODELS.items():
    runs[name] = measuring(ss.measure(), size, arrays)
  times: dict[str, list[float]] = {name: [] for name in runs}
  for _ in range(REPEATS):
    timed = variants.time_interleaved(runs, STEPS, ROUNDS)
    for name, seconds in timed.items():
      times[name].append(1e3 * statistics.median(seconds))
  return times


@functools.cache
def compressed() -> list[dict]:
  """Returns what steps with each reducer cost, one row for every repeat."""
  return [overhead.reducers_row(1, STEPS, ROUNDS) for _ in range(REPEATS)]


def _judge(one: str, other: str, rule: Range) -> Judge:
  def judge(groups):
    first, second = (measured()[name] for name in (one, other))
    parts = [
      f'{one}: {statistics.median(first):.3g}',
      f'{other}: {statistics.median(second):.3g}',
    ]
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    return found('ms', parts, ratios, rule, '.2f')

  return judge


def _cheaper(name: str) -> Judge:
  def judge(groups):
    rows = compressed()
    parts = [
      f'{n}: {statistics.median(row[n] for row in rows):.2f}'
      for n in (name, 'top_k')
    ]
    less = [row['top_k'] - row[name] for row in rows]
    return found('a step, in local steps', parts, less, BETTER, '+.2f')

  return judge


def claims() -> Iterator[Claim]:
  """Yields the claims about the cost of a measurement and of a selection."""
  yield Claim(
    'Measuring over a window of 200 steps costs at least half more than over '
    'one of 25',
    ', '.join(f'{name} +{more}%' for name, more in SLOWER.items()),
    _judge('window 200', 'window 25', Range(low=1.5)),
  )
  yield Claim(
    'Measuring over a window costs as much as a recursive mean (ours)',
    'a window alone',
    _judge('window 25', 'recursive', about(1)),
  )
  yield Claim(
    'Measuring costs more with ResNet101, of 44.5 million parameters, than '
    'with VGG11, of 132.9 million',
    '17 ms, 3.1 ms',
    _judge('ResNet101', 'VGG11', Range(low=1)),
  )
  for name, words in (('micro', 'MiCRO'), ('exdyna', 'ExDyna')):
    yield Claim(
      f"A step with {words}'s selection is shorter than with top-k's ({words})",
      'no number at hand',
      _cheaper(name),
    )
