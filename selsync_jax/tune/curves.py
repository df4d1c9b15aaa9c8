"""The scores of runs, and their costs on a network, at each step."""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any

import jax

from selsync_jax.methods import Context
from selsync_jax.runs import records
from selsync_jax.runs.history import Run, Trial
from selsync_jax.sync.network import Network
from selsync_jax.training import step_cost
from selsync_jax.training.problem import create_problem
from selsync_jax.training.settings import check, Settings
from selsync_jax.tune.objective import Point


class Curves:
  """Reads the scores of runs of one workload, over their cost on a network.

  The time of a step is its compute time, plus the network time that `plan`
  estimates, with the LSSR of the run so far.

  All runs are judged by the metric of `run`, a run of the workload with these
  settings. `compute` has the seconds of a worker's step, by its optimizer.
  """

  def __init__(
    self,
    run: Run,
    settings: Settings,
    network: Network,
    compute: Mapping[str, float],
  ):
    (self.metric, *_) = run.validated
    self.higher = self.metric in run.goal.higher  # Whether that is better.
    problem = create_problem(settings)
    self._shapes, self._steps = problem.shapes, problem.steps
    self._context = Context(problem.steps_per_epoch, problem.seed)
    self._links, self.compute = network, compute

  @property
  def network(self) -> str:
    """The network in words."""
    workers, bandwidth, latency = self._links
    rate = f'{bandwidth / 1e6:g} Mbit/s'
    return f'{workers} workers, {rate}, {1e3 * latency:g} ms'

  def of(self, trial: Trial) -> Callable[[], Sequence[Point]]:
    """Returns a function that returns the points of a run so far, by step.

    A score that is not finite counts as missing.
    """
    seconds, field = self._seconds(trial), f'validation_{self.metric}'

    def read():
      return [
        Point(
          math.nan if row.get(field) is None else row[field],
          row['bytes_per_worker'],
          seconds(row),
        )
        for row in records.read_metrics(trial.workdir)
      ]

    return read

  def sent(self, trial: Trial) -> float:
    """Returns the bytes that a worker sends in a run of the config's length.

    Nothing is trained: a target LSSR of the method says how often it averages.
    """
    lssr = trial.config.sync.get('lssr') or 0.0
    return self._steps * self._cost(trial)(lssr).sent

  def _seconds(self, trial: Trial) -> Callable[[Mapping[str, Any]], float]:
    """Returns a function from a row of a run to its time on the network."""
    compute = self.compute[trial.config.optimizer.name]
    cost = self._cost(trial)
    return lambda row: row['step'] * (compute + cost(row['lssr']).network)

  def _cost(self, trial: Trial) -> Callable[[float], step_cost.Cost]:
    """Returns a function from a run's LSSR to the cost of its steps."""
    settings = check(trial.config)
    assert settings.method is not None  # It is not asynchronous.
    strategy = settings.method(self._context)
    compute = self.compute[trial.config.optimizer.name]
    optimizer = settings.optimizer(learning_rate=trial.learning_rate)
    opt_state = jax.eval_shape(optimizer.init, self._shapes['params'])

    @functools.cache
    def cost(lssr):
      return step_cost.cost(
        strategy, self._shapes, self._links, lssr, opt_state, compute
      )

    return cost
