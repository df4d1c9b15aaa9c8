"""Predicts seconds of runs by the formula of docs/plan.md.

On a network `10:1`, BSP's bytes take ten times as long as a worker's step
computes on this machine, plus a millisecond per message.
"""

from collections.abc import Iterable
import math
from typing import NamedTuple

from selsync_jax.runs import history
from selsync_jax.runs.history import Trial
from selsync_jax.sync.network import Network
from selsync_jax.training import step_cost
from selsync_jax.training.settings import check
from selsync_jax.tune.curves import Curves

RATIOS = 1, 10, 100
LATENCY = 1e-3  # Seconds.
STEPS = 20  # Timed to find the duration of a step.


class Clock(NamedTuple):
  """Converts a finished run into seconds, by ratio.

  Attributes:
    step: seconds that a step of BSP computes.
    curves: curves of the runs on each network.
  """

  step: float
  curves: dict[int, Curves]

  def seconds(self, trial: Trial) -> dict[int, float]:
    """Seconds of a run on each network; NaN if no score was finite."""
    return {
      ratio: max((p.seconds for p in curves.of(trial)()), default=math.nan)
      for ratio, curves in self.curves.items()
    }


def create_clock(bsp: Trial, trials: Iterable[Trial]) -> Clock:
  """Times a step with each optimizer of some trials.

  Args:
    bsp: a finished run, whose bytes set the speed of the networks.
    trials: the runs that use these optimizers.
  """
  run = history.read(bsp.workdir)
  configs = {each.config.optimizer.name: each.config for each in trials}
  compute = {
    name: step_cost.measure(config, STEPS).seconds
    for name, config in configs.items()
  }
  step = compute[bsp.config.optimizer.name]
  bits = 8 * run.outcome['bytes_per_worker'] / run.outcome['steps']
  curves = {}
  for ratio in RATIOS:
    links = Network(bsp.config.workers, bits / (ratio * step), LATENCY)
    curves[ratio] = Curves(run, check(bsp.config), links, compute)
  return Clock(step, curves)
