"""Which delta for a wanted LSSR? The paper gives no rule; this is one.

  python -m selsync_jax.delta --config=configs/digits.py --steps=200 --lssr=0.9

takes the first steps of the run with delta 0, which is BSP, and records every
worker's relative gradient change. A threshold would have synchronised the steps
at which enough workers reach it, so the record gives LSSR as a function of
delta, and a delta for the wanted LSSR. Workers that talk less see other
gradients, so the suggestion is tried; if it misses, what was recorded meanwhile
suggests a better one. All of it is printed, and drawn into `delta.png` and
`delta.html`.
"""

import argparse
from collections.abc import Sequence
import functools
import math
import pathlib
from typing import NamedTuple

from jaxtyping import Float
from matplotlib.figure import Figure
import ml_collections
import numpy as np

from selsync_jax import canvas
from selsync_jax import command
from selsync_jax import page
from selsync_jax import workers
from selsync_jax.canvas import Layout
from selsync_jax.canvas import Plot
from selsync_jax.config import ConfigError

ROUNDING = 0.02  # Of LSSR, what a delta of few digits is worth.
MISS = 0.04  # Of LSSR; a suggestion that is off by more is corrected,
CORRECTIONS = 2  # so many times at most.
ROWS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)  # LSSRs that the table shows.


class Trial(NamedTuple):
  """The first steps of a run, and what they tell of the whole.

  Attributes:
    delta: that they were taken with.
    deciding: the change that decides the vote at each step, see `deciding`.
    weights: the share of the run that each step stands for.
  """

  delta: float
  deciding: Float[np.ndarray, 'steps']
  weights: Float[np.ndarray, 'steps']

  def lssr(self, delta: float) -> float:
    """The share of the run that a threshold leaves local."""
    return float(np.sum(self.weights, where=self.deciding < delta))

  @property
  def reached(self) -> float:
    """The LSSR with the trial's own delta."""
    return self.lssr(self.delta)


def deciding(
  changes: Float[np.ndarray, 'steps workers'],
  quorum: float | None = None,
  vote_every: int = 1,
) -> Float[np.ndarray, 'steps']:
  """The change that decides the vote at each step.

  Any delta up to it synchronises: it is the largest of the workers', with a
  quorum that of the last worker who is needed. A vote on several steps takes
  each worker's largest.

  Args:
    changes: relative gradient changes; NaN vetoes the vote.
    quorum: see `selsync`.
    vote_every: see `selsync`.

  Returns:
    The change, -inf where nothing could synchronise.
  """
  steps, workers = changes.shape
  voted = steps // vote_every * vote_every
  ballots = changes[:voted].reshape(-1, vote_every, workers).max(axis=1)
  needed = max(1, math.ceil((quorum or 0) * workers - 1e-9))
  vetoed = np.isnan(ballots).any(axis=1)
  decides = np.full(steps, -np.inf)
  decides[vote_every - 1 : voted : vote_every] = np.where(
    vetoed, -np.inf, np.sort(ballots, axis=1)[:, -needed]
  )
  return decides


def weigh(steps: int, total: int) -> Float[np.ndarray, 'steps']:
  """The share of a run that each of its first steps stands for.

  The first quarter has the warm-up in it, and the smoothing's gathering of a
  past, which come once. The steps that were not taken are like the others.
  """
  once = steps // 4
  weights = np.ones(steps)
  weights[once:] = (total - once) / (steps - once)
  return weights / total


def suggest(trial: Trial, wanted: float) -> float:
  """The delta with the fewest digits that gives about the wanted LSSR.

  Args:
    trial: to judge by.
    wanted: LSSR, in [0, 1).

  Returns:
    A finite threshold, whose LSSR is within 0.02 of the wanted one if the trial
    has such, or else as near as can be.
  """
  order = np.argsort(trial.deciding)
  changes = trial.deciding[order]
  # Above `least[k]`, and up to `most[k]`, a delta leaves `local[k]` local.
  local = np.append(0, np.cumsum(trial.weights[order]))
  least = np.append(0, np.maximum(changes, 0))
  most = np.append(np.maximum(changes, 0), np.inf)
  misses = np.where(least < most, np.abs(local - wanted), np.inf)
  misses[np.isinf(least)] = np.inf
  near = np.flatnonzero(misses <= max(ROUNDING, misses.min()))
  low, high = least[near[0]], most[near[-1]]
  return _roundest(low, high if np.isfinite(high) else 2 * low + 1)


def _roundest(low: float, high: float) -> float:
  """The number above `low`, up to `high`, with the fewest digits."""
  middle = (low + high) / 2
  for digits in range(1, 17):
    number = float(f'{middle:.{digits}g}')
    if low < number <= high:
      return number
  return float(high)


def try_deltas(
  config: ml_collections.ConfigDict, wanted: float, steps: int
) -> list[Trial]:
  """The trials that lead to a delta: BSP first, the best suggestion last.

  Args:
    config: of the run.
    wanted: LSSR, in [0, 1).
    steps: of a trial.
  """
  bsp = trial = _try(config, 0.0, steps)
  tried = []
  while len(tried) <= CORRECTIONS:
    trial = _try(config, suggest(trial, wanted), steps)
    tried.append(trial)
    if abs(trial.reached - wanted) <= MISS:
      break
  tried.sort(key=lambda t: -abs(t.reached - wanted))
  return [bsp, *tried]


def _try(config, delta, steps):
  # These import TensorFlow, which a mistake need not wait for.
  from selsync_jax import job as job_lib
  from selsync_jax import probe

  config = config.copy_and_resolve_references()
  config.sync.delta = delta
  job = job_lib.prepare(config)
  workers.check_devices(config.workers, config.mapper)
  fresh = job_lib.fresh_state(job, config)
  rows = probe.run(job, config, fresh, steps, config.workers)
  changes = np.array([row['relative_changes'] for row in rows])
  sync = config.sync
  return Trial(
    delta,
    deciding(changes, sync.quorum, sync.vote_every),
    weigh(len(rows), job.steps),
  )


def table(trials: Sequence[Trial]) -> list[list[str]]:
  """LSSR of some deltas by BSP and by the last trial, under its head."""
  seen = trials[0], trials[-1]
  deltas = {suggest(seen[0], wanted) for wanted in ROWS} | {seen[1].delta}
  rows = [
    [f'{delta:g}', *(f'{trial.lssr(delta):.2f}' for trial in seen)]
    for delta in sorted(deltas)
  ]
  return [['delta', *(f'LSSR {_taken(trial)}' for trial in seen)], *rows]


def _taken(trial):
  return f'by delta {trial.delta:g}' if trial.delta else 'by BSP'


def draw(trials: Sequence[Trial], wanted: float, layout: Layout) -> Figure:
  """LSSR over delta, by BSP and by the last trial, and the suggestion."""
  figure, (ax,) = canvas.panels(layout, 1, 280, legend=4)
  for i, trial in enumerate((trials[0], trials[-1])):
    past = np.sort(trial.deciding)
    past = past[np.isfinite(past) & (past > 0)]
    style = canvas.style(i) | {'marker': '', 'drawstyle': 'steps-pre'}
    ax.plot(past, [*map(trial.lssr, past)], **style, label=_taken(trial))
  best = trials[-1]
  ax.plot(
    best.delta,
    best.reached,
    'o',
    color=canvas.LIGHT['ink'],
    label=f'delta {best.delta:g}, tried',
    gid='suggestion',
  )
  ax.axhline(
    wanted, color=canvas.LIGHT['muted'], linestyle=(0, (1, 3)), label='wanted'
  )
  ax.set(xscale='log', ylim=(-0.02, 1.02), xlabel='delta (no unit)')
  ax.set_title('LSSR (local steps / steps)')
  canvas.log_ticks(ax.xaxis, 8)
  canvas.add_legend(figure, ax, layout)
  return figure


def write(
  trials: Sequence[Trial], wanted: float, name: str, out: pathlib.Path
) -> pathlib.Path:
  """Writes the figure, and a page of it and the table; returns the page."""
  best = trials[-1]
  plot = Plot(
    'delta',
    'LSSR as a function of delta',
    'The share of steps that each delta would have left local, by the changes '
    'recorded under BSP and with the suggested delta.',
    functools.partial(draw, trials, wanted),
  )
  out.mkdir(parents=True, exist_ok=True)
  canvas.to_png(plot, out)
  head, *rows = table(trials)
  body = [
    page.header(
      f'delta {best.delta:g} for an LSSR of {wanted:g}',
      f'{name}; {len(best.deciding)} steps with it gave {best.reached:.2f}',
    ),
    page.figure(plot),
    page.table('table', 'Some deltas', head, [(r[0], r[1:]) for r in rows]),
  ]
  path = out / 'delta.html'
  path.write_text(page.page('Choosing delta', body), encoding='utf-8')
  return path


def _share(text):
  if not 0 <= float(text) < 1:
    raise argparse.ArgumentTypeError(f'must be in [0, 1), got {text}')
  return float(text)


def _flags() -> tuple[argparse.Namespace, list[str]]:
  """The flags of this command, and those for the config."""
  parser = command.Parser('delta', 'Suggests a delta for a wanted LSSR.')
  add = parser.add_argument
  add('--config', default='configs/digits.py', metavar='FILE')
  add('--steps', type=command.at_least(20), default=200, help='of a trial')
  add('--lssr', type=_share, default=0.9, help='local steps / steps, wanted')
  add('--out', type=pathlib.Path, help='folder; default: runs/delta-CONFIG')
  return parser.parse_known_args()


def main() -> None:
  """Tries, prints and draws."""
  flags, fields = _flags()
  config = command.load(flags.config, fields)
  if 'delta' not in config.sync:
    raise ConfigError(f'--config={flags.config}: {config.sync.method} has no delta')
  if config.mapper == 'pmap':
    workers.make_devices(config.workers, 1)
  trials = try_deltas(config, flags.lssr, flags.steps)
  for row in table(trials):
    print(''.join(f'{cell:>22}' for cell in row))
  name = pathlib.Path(flags.config.partition(':')[0]).stem
  out = flags.out or pathlib.Path('runs') / f'delta-{name}'
  best = trials[-1]
  print(
    f'\nfor an LSSR of {flags.lssr:g}: --config.sync.delta={best.delta:g} '
    f'(tried, {best.reached:.2f})'
  )
  print(write(trials, flags.lssr, flags.config, out))


if __name__ == '__main__':
  command.main('delta', main)
