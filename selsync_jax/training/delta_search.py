"""The search for the delta that gives a wanted LSSR.

The first steps of the run are taken with delta 0, which is BSP, and every
worker's relative gradient change is recorded. A threshold would have
synchronized the steps at which enough workers reach it, so this sample gives
LSSR as a function of delta, and a delta for the wanted LSSR. Workers that
communicate less have other gradients; therefore that delta is tried twice, and
corrected after each trial.

The design (benchmarks/quality/delta.py measures how well it works):

* Every sample has its own seed, and the two trials together decide. LSSR can be
  a steep function of delta: a gradient that almost vanishes changes by almost
  the smoothing factor, and where many do, a tiny change of delta decides about
  half of the steps.
* The schedule is that of the whole run. A schedule compressed into the sample
  would lower the learning rate before the gradients have settled, and delta
  would be too small.
* The steps after the sample count as its last three quarters do. The first
  quarter has the warm-up, which happens once; weighted like the others, it
  would make delta too large.

A sample that is a small part of its run cannot show how far the gradients will
settle, so it should be as long as affordable.
"""

from typing import Any, NamedTuple

import ml_collections
import numpy as np

from selsync_jax.runs.fetching import Fetcher
from selsync_jax.runs.ledger import Totals
from selsync_jax.training import start
from selsync_jax.training import threshold
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from selsync_jax.training.setup import Setup
from selsync_jax.training.threshold import ChangeSample
from selsync_jax.training.threshold import suggest

TRIALS = 2  # Runs with a suggested delta; each corrects it.
STEEP = 0.1  # The difference of LSSR between a delta 1% larger and smaller.
ROWS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)  # The LSSRs of `rows`.


class Choice(NamedTuple):
  """A delta, and the samples that led to it."""

  bsp: ChangeSample  # With delta 0.
  tried: ChangeSample  # Those of the trials, joined.
  deltas: list[float]  # The suggestions that were tried, then the final one.

  @property
  def delta(self) -> float:
    """The final suggestion."""
    return self.deltas[-1]

  @property
  def steepness(self) -> float:
    """The difference of LSSR between a delta 1% larger and smaller."""
    lssr, delta = self.tried.lssr, self.delta
    return lssr(delta * 1.01) - lssr(delta / 1.01)

  def rows(self) -> list[tuple[float, float, float]]:
    """Returns some deltas, each with its LSSR by `bsp` and by `tried`."""
    deltas = {suggest(self.bsp, wanted) for wanted in ROWS} | {self.delta}
    return [(d, self.bsp.lssr(d), self.tried.lssr(d)) for d in sorted(deltas)]


def choose(
  config: ml_collections.ConfigDict, wanted: float, steps: int
) -> Choice:
  """Samples some steps with delta 0, then with the suggested deltas."""
  bsp = _sample(config, 0.0, 0, steps)
  deltas, tried, together = [suggest(bsp, wanted)], [], bsp
  for trial in range(1, TRIALS + 1):
    tried.append(_sample(config, deltas[-1], trial, steps))
    together = ChangeSample(
      np.concatenate([sample.deciding for sample in tried]),
      np.concatenate([sample.weights / trial for sample in tried]),
      bsp.max_period,
    )
    deltas.append(suggest(together, wanted))
  return Choice(bsp, together, deltas)


def _sample(
  config: ml_collections.ConfigDict, delta: float, trial: int, steps: int
) -> ChangeSample:
  """Returns a sample of the run with another delta, and its own seed."""
  config = config.copy_and_resolve_references()
  config.seed += trial
  config.sync.delta = delta
  setup = create_setup(check(config))
  setup.plan.mapper.check()
  rows = first_steps(setup, steps)
  changes = np.array([row['relative_changes'] for row in rows])
  vote_every = setup.strategy.trigger.traits.spacing
  return ChangeSample(
    threshold.deciding(changes, config.sync.get('quorum'), vote_every),
    threshold.weigh(len(rows), setup.problem.steps),
    threshold.forced_period(config.sync.get('max_period'), vote_every),
  )


def first_steps(setup: Setup, steps: int) -> list[dict[str, Any]]:
  """Takes the first steps of a run, as the run itself would.

  Returns a row per step, as in `metrics.jsonl`. The first one's seconds include
  compilation. A shorter run takes fewer steps.
  """
  rows: list[dict[str, Any]] = []
  fetcher = Fetcher(
    setup.ledger(Totals()),
    setup.plan.mapper.gather,
    fetch=1,  # A row per step, each with its own time.
    takers=[rows.append],
  )
  workers = range(setup.plan.workers)
  state, take_step = start.fresh(setup), setup.train_step()
  stop = min(steps, setup.problem.steps)
  for batch in setup.problem.data.batches(workers, 0, stop):
    state, metrics = take_step(state, batch)
    fetcher.add(metrics)
    fetcher.enter_ready()
  fetcher.enter_all()
  return rows
