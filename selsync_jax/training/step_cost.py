"""The cost of a step of each method on a network, by arithmetic.

Communication overlaps with computation only for late collectives: a worker that
waits for a vote or an average does not compute. Islands begin the next step
during a vote; `Cost.ahead` is the rest of their waiting time.
"""

import collections
from collections.abc import Callable, Mapping
from itertools import pairwise
import math
import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import optax

from selsync_jax import methods
from selsync_jax.models import tasks
from selsync_jax.sync.averagers import Averager
from selsync_jax.sync.copies import Leaves, NONE, parameter_copies
from selsync_jax.sync.delay import delayed
from selsync_jax.sync.network import Network, pays_to_guess
from selsync_jax.sync.strategy import Strategy
from selsync_jax.training.gradient import gradient
from selsync_jax.training.problem import create_problem, Problem
from selsync_jax.training.settings import check

EPOCH = 1_000
"""Steps of an epoch if the data is unknown, for methods that need it."""


class Cost(NamedTuple):
  """The cost of a step, averaged over steps."""

  lssr: float  # The share of steps without an average.
  sent: float  # Bytes that each worker sends.
  vote: float  # Seconds of waiting for votes.
  average: float  # Seconds of waiting for averages.
  hidden: float  # Seconds that averages travel while the workers compute.
  delay: int | None  # Steps that hide an average; `None` if none can.
  compute: float  # Seconds of a worker's own computation.
  # Seconds of waiting for votes between islands, which take the next step
  # meanwhile, as if none asked for an average, where that is faster.
  ahead: float

  @property
  def network(self) -> float:
    """Seconds of waiting for the network."""
    return self.vote + self.average

  @property
  def step(self) -> float:
    """Seconds of a step: its computation, then its wait for the network."""
    return self.compute + self.network


def cost(
  strategy: Strategy,
  shared: Any,
  network: Network,
  lssr: float,
  opt_state: Any = (),
  compute: float = 0.0,
  work: float = 0.0,
) -> Cost:
  """Returns the cost of a step of a method on a network.

  `shared` is `{'params', 'model_state'}` of one worker, and `lssr` is for a
  method without a fixed period. The workers compute for `compute` seconds a
  step, in which late collectives travel. With a delay of d steps there is at
  most one synchronization in d steps. An average takes `work` seconds of a
  worker's own computation; no delay hides it, because a device is busy.
  """
  averager, workers = strategy.averager, network.workers
  if (period := strategy.trigger.traits.period) is not None:
    lssr = 1 - 1 / period
  lssr = max(lssr, 1 - 1 / max(averager.steps_late, 1))
  often = {'step': 1.0, 'sync': 1 - lssr}
  between = 1 / (1 - lssr) if lssr < 1 else math.inf

  def waited(collectives):
    """Returns the seconds of waiting and the hidden seconds, per step."""
    travel = collections.defaultdict(list)  # One message after another.
    for c in collectives:
      travel[c.at, c.rate, min(c.late, between)].append(network.seconds(c))
    hidden = sum(  # Collectives of a rate below 1 take turns.
      often[at]
      * min(sum(each), min(1, rate * len(each)) * compute * late if late else 0)
      for (at, rate, late), each in travel.items()
    )
    whole = sum(often[at] * sum(each) for (at, *_), each in travel.items())
    return whole - hidden, hidden

  sends = strategy.sends_by_part(shared, workers, opt_state)
  votes, messages = sends['trigger'], sends['averager']
  every = sum(sends.values(), ())
  vote, _ = waited(votes)
  trip, on_numbers = network.round_trip, strategy.trigger.traits.sees_update

  def ahead(vote):
    """Returns the seconds of waiting for a vote at the coordinator."""
    left = max(0.0, trip - compute)
    if vote.late or on_numbers:  # Islands cannot guess a number.
      return vote.rate * (left if vote.late else trip)
    wrong = min(1.0, (1 - lssr) / vote.rate)
    if not pays_to_guess(wrong, compute, trip):
      return vote.rate * trip
    return vote.rate * ((1 - wrong) * left + wrong * max(trip, compute))

  average, hidden = waited(every[len(votes) :])
  if messages:
    average += often['sync'] * (work + network.agreement)
  delay = None
  if compute and (averager.steps_late or _may_be_late(strategy)):
    delay = math.ceil(sum(map(network.seconds, messages)) / compute)
  return Cost(
    lssr=lssr,
    sent=sum(often[c.at] * c.sent(workers) for c in every),
    vote=vote,
    average=average,
    hidden=hidden,
    delay=delay,
    compute=compute,
    ahead=sum(map(ahead, votes)),
  )


def costs(
  fields: Mapping[str, Mapping[str, Any]],
  context: methods.Context,
  shared: Any,
  network: Network,
  lssr: float,
  moments: Callable[[str], Any],
  compute: float = 0.0,
  work: Callable[[Averager], float] | None = None,
) -> tuple[dict[str, Cost], dict[str, str]]:
  """Returns the cost of each method, and why some methods cannot be used.

  Both are by name. `fields` has the `sync` of each method's config; see `cost`
  for the other arguments; `moments` maps a method's name to its `opt_state`
  there, and `work` an averager to its `work`.
  """
  found, impossible = {}, {}
  for name, sync in fields.items():
    try:
      strategy = methods.create_strategy(context=context, **sync)
      strategy.averager.check(network.workers)
      about = shared, network, lssr, moments(name), compute
      own = work(strategy.averager) if work else 0.0
      found[name] = cost(strategy, *about, own)
    except ValueError as error:  # The parts or this many workers do not fit.
      impossible[name] = str(error)
  return found, impossible


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
  quartiles: tuple[float, float] | None  # `None` if it was not measured.
  shared: Any  # The shapes of the averaged tree, see `TrainState.shared`.
  opt_state: Any  # The shapes of the rest of the optimizer's state.
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
    *_parts(problem.shapes, problem.optimizer, problem.frozen),
    problem.steps_per_epoch,
  )


def _parts(
  shapes: dict[str, Any],
  optimizer: optax.GradientTransformation,
  frozen: Leaves = NONE,
) -> tuple[Any, Any]:
  """Returns the shapes of the averaged tree and of the moments."""
  params = shapes['params']
  copies = parameter_copies(optimizer, params)
  opt_state = jax.eval_shape(optimizer.init, params)
  shared = shapes | {'params': frozen.rest(params)}
  if copies.names:
    shared |= {'copies': copies.take(opt_state)}
  return shared, copies.rest(opt_state)


def given(
  config: ml_collections.ConfigDict, parameters: int, seconds: float
) -> Measurement:
  """Returns the measurement of a model that this package does not have.

  Its parameters are float32, in a hundred square matrices and a vector of the
  rest; the optimizer is the config's.
  """
  side = math.isqrt(parameters // 100)
  shapes = 100 * [(side, side)] + [(parameters - 100 * side**2,)]
  params = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  optimizer = check(config).optimizer(learning_rate=0.0)
  return Measurement(
    seconds,
    None,
    *_parts({'params': params, 'model_state': {}}, optimizer),
    EPOCH,
  )


def moments(config: ml_collections.ConfigDict, shared: Any) -> Any:
  """Returns the shapes of the moments of a config's optimizer, for `costs`."""
  optimizer = check(config).optimizer(learning_rate=0.0)
  return _parts({'params': shared['params']}, optimizer)[1]


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
