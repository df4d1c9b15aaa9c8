"""A training step that is cut where all workers wait for their vote.

Between processes, a vote travels by whichever is faster: a collective of the
devices, whose messages pass through one process after another, or the
connections of the processes, which need one round trip. Both add up whole
numbers. The two programs around the vote are the same in either case, so a run
that is resumed has the same bits, whatever was faster before.
"""

import collections
from collections.abc import Callable, Sequence
import statistics
import time
from typing import Any

import jax
from jax import lax
from jax.extend import core
import jax.numpy as jnp
import numpy as np

from selsync_jax.cluster.channel import Channel
from selsync_jax.devices import equations
from selsync_jax.devices.mapper import Function
from selsync_jax.devices.mapper import Mapper
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.consensus import VOTE

ROUNDS = 20
"""How often each way is timed."""

Way = Callable[[Any], Any]
"""Returns the sum over all workers, for each of the ballots [workers]."""


def by_devices(mapper: Mapper) -> Way:
  """Returns the way of a vote by a collective of the devices."""
  return mapper.map_workers(lambda ballot: lax.psum(ballot, AXIS))


def by_processes(channel: Channel) -> Way:
  """Returns the way of a vote over the connections of the processes."""

  def count(ballots):
    own = np.asarray(ballots)
    (total,) = channel.total([int(own.sum())])
    return np.full_like(own, total)

  return count


def cut_at_vote(
  step: Function, mapper: Mapper, fastest: Callable[[], Way]
) -> Function:
  """Maps a training step in two programs, if it has one vote.

  A step that has none, or has it in a branch, is one program.

  Args:
    step: `step(state, batch) -> (state, metrics)` of one worker.
    mapper: its `map_workers` maps both programs; they donate the state.
    fastest: returns the way of the vote; it is called before the first step.
  """
  made: list[Function] = []

  def call(*args):
    if not made:
      made.append(_mapped(step, mapper, fastest, args))
    return made[0](*args)

  return call


def _mapped(step, mapper, fastest, args) -> Function:
  rows = jax.tree.map(_row, args)
  closed, results = jax.make_jaxpr(
    step, axis_env=[(AXIS, mapper.workers)], return_shape=True
  )(*rows)
  votes = [eqn for eqn in closed.jaxpr.eqns if eqn.params.get('name') == VOTE]
  if len(votes) != 1:
    return mapper.map_workers(step, donate=(0,))
  before, after, carried = _halves(closed, votes[0])
  state = closed.jaxpr.invars[: len(jax.tree.leaves(args[0]))]
  first = mapper.map_workers(before, _reused(state, carried))
  second = mapper.map_workers(after, _reused(carried, closed.jaxpr.outvars, 1))
  structure, vote = jax.tree.structure(results), fastest()

  def run(*args):
    ballot, *values = first(*jax.tree.leaves(args))
    return jax.tree.unflatten(structure, second(vote(ballot), *values))

  return run


def _row(x: Any) -> jax.ShapeDtypeStruct:
  """Returns the shape of one worker's row."""
  weak = getattr(x, 'weak_type', False)
  return jax.ShapeDtypeStruct(
    np.shape(x)[1:], jnp.result_type(x), weak_type=weak
  )


def _halves(
  closed: core.ClosedJaxpr, vote: core.JaxprEqn
) -> tuple[Function, Function, Sequence[core.Var]]:
  """Returns what does not need the vote, what does, and what is between.

  They are `before(*arguments) -> [ballot, *between]` and `after(count,
  *between) -> results`.
  """
  jaxpr, halves, late = closed.jaxpr, ([], []), {*vote.outvars}
  for eqn in jaxpr.eqns:
    if eqn is not vote:
      is_late = not late.isdisjoint(equations.variables(eqn.invars))
      late.update(eqn.outvars if is_late else ())
      halves[is_late].append(eqn)
  read = [atom for eqn in halves[1] for atom in eqn.invars]
  between = [
    var
    for var in dict.fromkeys(equations.variables([*read, *jaxpr.outvars]))
    if var not in late and var not in jaxpr.constvars
  ]

  def before(*values):
    env = equations.initial(closed, values)
    equations.evaluate(halves[0], env)
    return equations.read([*vote.invars, *between], env)

  def after(count, *values):
    env = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env |= zip([*vote.outvars, *between], [count, *values], strict=True)
    equations.evaluate(halves[1], env)
    return equations.read(jaxpr.outvars, env)

  return before, after, between


def _reused(
  given: Sequence[Any], made: Sequence[Any], start: int = 0
) -> tuple[int, ...]:
  """Returns the places of the arguments whose memory results can take."""
  wanted = collections.Counter((x.aval.shape, x.aval.dtype) for x in made)
  places = []
  for place, x in enumerate(given, start):
    if wanted[kind := (x.aval.shape, x.aval.dtype)]:
      wanted[kind] -= 1
      places.append(place)
  return tuple(places)


def fastest(mapper: Mapper, channel: Channel) -> Way:
  """Returns the way that is faster on most processes; all call it."""
  ways = by_devices(mapper), by_processes(channel)
  start = np.zeros(len(mapper.local), np.int32)
  ballots = mapper.map_workers(lambda x: x + 1)

  def seconds(way):
    begun = time.perf_counter()
    jax.block_until_ready(way(ballots(start)))
    return time.perf_counter() - begun

  times = [[seconds(way) for way in ways] for _ in range(1 + ROUNDS)][1:]
  device, host = map(statistics.median, zip(*times, strict=True))
  (prefer_host,) = channel.total([1 if host < device else -1])
  return ways[prefer_host > 0]
