"""What a step of each method costs on a network, by arithmetic.

Communication and computation do not overlap, but for collectives that are late:
a worker that waits for a vote or an average does not compute.
"""

import collections
from itertools import pairwise
import math
import statistics
import time
from typing import Any, NamedTuple

import jax
import ml_collections
import optax

from selsync_jax.models import tasks
from selsync_jax.sync.delay import delayed
from selsync_jax.sync.network import Network
from selsync_jax.sync.strategy import Strategy
from selsync_jax.training.gradient import gradient
from selsync_jax.training.problem import create_problem
from selsync_jax.training.problem import Problem
from selsync_jax.training.settings import check


class Cost(NamedTuple):
  """The cost of a step beyond its computation, averaged over steps."""

  lssr: float  # The share of steps without an average.
  sent: float  # Bytes that each worker sends.
  vote: float  # Seconds of waiting for votes.
  average: float  # Seconds of waiting for averages.
  hidden: float  # Seconds that averages travel while the workers compute.
  delay: int | None  # Steps that hide an average; `None` if none can.

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
  compute: float = 0.0,
) -> Cost:
  """Returns what a step of a method costs on a network.

  `shared` is `{'params', 'model_state'}` of one worker, and `lssr` is that of a
  method without a fixed period. The workers `compute` for so many seconds a
  step while a late collective travels. With a delay there is at most one
  synchronization in so many steps.
  """
  averager, workers = strategy.averager, network.workers
  if strategy.period is not None:
    lssr = 1 - 1 / strategy.period
  lssr = max(lssr, 1 - 1 / max(averager.delay, 1))
  often = {'step': 1.0, 'sync': 1 - lssr}
  between = 1 / (1 - lssr) if lssr < 1 else math.inf

  def waited(collectives):
    """Returns the seconds a step of waiting, and those that are hidden."""
    travel = collections.defaultdict(list)  # One message after another.
    for c in collectives:
      travel[c.at, c.rate, min(c.late, between)].append(network.seconds(c))
    hidden = sum(  # Those of a rate below 1 take turns.
      often[at]
      * min(sum(each), min(1, rate * len(each)) * compute * late if late else 0)
      for (at, rate, late), each in travel.items()
    )
    whole = sum(often[at] * sum(each) for (at, *_), each in travel.items())
    return whole - hidden, hidden

  every = strategy.sends(shared, workers, opt_state)
  votes = strategy.trigger.sends(shared['params'], workers)
  vote, _ = waited(votes)
  average, hidden = waited(every[len(votes) :])
  delay = None
  if compute and (averager.delay or _may_be_late(strategy)):
    messages = averager.sends(strategy.averaged(shared), workers)
    delay = math.ceil(sum(map(network.seconds, messages)) / compute)
  return Cost(
    lssr=lssr,
    sent=sum(often[c.at] * c.sent(workers) for c in every),
    vote=vote,
    average=average,
    hidden=hidden,
    delay=delay,
  )


def _may_be_late(strategy: Strategy) -> bool:
  """Returns whether a strategy's averages may have a delay."""
  try:
    strategy._replace(averager=delayed(strategy.averager, 1)).check()
  except ValueError:
    return False
  return True


class Measurement(NamedTuple):
  """A measurement of one worker's steps."""

  seconds: float  # Their median, without the first step, which compiles.
  quartiles: tuple[float, float]  # The lower and the upper one.
  shared: Any  # The shapes of `{'params', 'model_state'}` of the worker.
  opt_state: Any  # The shapes of its optimizer's state.
  steps_per_epoch: int


def measure(config: ml_collections.ConfigDict, steps: int) -> Measurement:
  """Times at least 3 steps of a worker without a method, on a device."""
  problem = create_problem(check(config))
  params, model_state = problem.init({})
  state = params, model_state, problem.optimizer.init(params)
  step, key = jax.jit(_step(problem), donate_argnums=(0,)), jax.random.key(0)
  times = []
  for batch in problem.data.batches(range(1), 0, steps):
    state = step(state, {name: x[0] for name, x in batch.items()}, key)
    jax.block_until_ready(state)
    times.append(time.perf_counter())
  seconds = [after - before for before, after in pairwise(times)]
  lower, median, upper = statistics.quantiles(seconds, method='inclusive')
  return Measurement(
    median,
    (lower, upper),
    problem.shapes,
    jax.eval_shape(problem.optimizer.init, problem.shapes['params']),
    problem.steps_per_epoch,
  )


def _step(problem: Problem) -> Any:
  """Returns the step of a single worker, `(state, batch, key) -> state`."""
  loss = tasks.train_loss(problem.model, problem.task)
  backward = gradient(loss, problem.accumulate)

  def step(state, batch, key):
    params, model_state, opt_state = state
    grads, (_, model_state) = backward(params, model_state, batch, key)
    updates, opt_state = problem.optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), model_state, opt_state

  return step
