"""What a step of each method costs on a network, by arithmetic.

Communication and computation do not overlap: a worker that waits for a vote or
an average does not compute.
"""

import dataclasses
from itertools import pairwise
import math
import statistics
from typing import Any, NamedTuple

import ml_collections

from selsync_jax import methods
from selsync_jax.devices import mappers
from selsync_jax.sync.network import Network
from selsync_jax.sync.strategy import Strategy
from selsync_jax.training import probe
from selsync_jax.training.experiment import create_experiment


class Cost(NamedTuple):
  """What a step costs in addition to its computation, averaged over steps.

  Attributes:
    lssr: the share of steps without an average.
    sent: bytes that each worker sends.
    vote: seconds of waiting for votes.
    average: seconds of waiting for averages.
  """

  lssr: float
  sent: float
  vote: float
  average: float

  @property
  def network(self) -> float:
    """Seconds of waiting for the network."""
    return self.vote + self.average


def cost(
  strategy: Strategy,
  shared: Any,
  network: Network,
  lssr: float,
  opt_state: Any = (),
) -> Cost:
  """What a step of a method costs on a network.

  Args:
    strategy: the method.
    shared: `{'params', 'model_state'}` of one worker.
    network: between the workers.
    lssr: of a method without a fixed period.
    opt_state: the optimizer's state of one worker.
  """
  if strategy.period is not None:
    lssr = 1 - 1 / strategy.period
  often = {'step': 1.0, 'sync': 1 - lssr}

  def seconds(collectives):
    return sum(often[c.at] * network.seconds(c) for c in collectives)

  every = strategy.sends(shared, network.workers, opt_state)
  vote = seconds(strategy.trigger.sends(shared['params'], network.workers))
  return Cost(
    lssr=lssr,
    sent=sum(often[c.at] * c.sent(network.workers) for c in every),
    vote=vote,
    average=seconds(every) - vote,
  )


class Measurement(NamedTuple):
  """One worker's steps, measured.

  Attributes:
    seconds: of a step; the median, without the first, which compiles.
    quartiles: the lower and the upper quartile of these seconds.
    shared: the shapes of `{'params', 'model_state'}` of the worker.
    opt_state: the shapes of its optimizer's state.
    steps_per_epoch: of the run.
  """

  seconds: float
  quartiles: tuple[float, float]
  shared: Any
  opt_state: Any
  steps_per_epoch: int


def measure(config: ml_collections.ConfigDict, steps: int) -> Measurement:
  """Takes steps with one worker, on the first device.

  Args:
    config: of SelSync, for batch size, data and model.
    steps: at least 3.
  """
  config = config.copy_and_resolve_references()
  config.sync.update(
    delta=math.inf, lssr=None, bytes_per_step=None, max_period=None
  )
  strategy = methods.create_strategy(
    context=methods.Context(1, config.seed), **config.sync.to_dict()
  )
  # A run that is too short for one vote would be refused.
  length = max(steps, strategy.trigger.traits.spacing)
  config.update(mapper='pmap', steps=length, mesh={'data': 1, 'fsdp': 1})
  experiment = dataclasses.replace(
    create_experiment(config), mapper=mappers.Pmap(1)
  )
  rows = probe.first_steps(experiment, steps, 1)
  seconds = [after['seconds'] - r['seconds'] for r, after in pairwise(rows)]
  lower, median, upper = statistics.quantiles(seconds, method='inclusive')
  return Measurement(
    median,
    (lower, upper),
    experiment.shapes.shared,
    experiment.shapes.opt_state,
    experiment.steps_per_epoch,
  )
