"""One worker's program, cut where it needs the other workers.

Between the cuts, the parts are compiled. At a cut, the host hands the worker's
values to its peers and goes on with what comes back. So a function that the
mappers map over the workers of one program, whatever its method, also runs
where each worker is a program of its own.

A conditional that communicates is cut, too: the host reads its predicate and
runs one branch. No compiled part waits for another worker, so a message that
another thread carries never blocks XLA or the device.
"""

from collections.abc import Callable, Iterator, Sequence
import functools
import itertools
import threading
from typing import Any, NamedTuple

import jax
from jax.extend import core
from jax.sharding import Sharding
import numpy as np

from selsync_jax.devices import equations
from selsync_jax.islands.peers import COLLECTIVES
from selsync_jax.islands.peers import Peers
from selsync_jax.sync.averagers import TRAVEL
from selsync_jax.sync.consensus import AXIS

_COMPILING = threading.Lock()
"""Held by the thread that compiles: JAX keeps programs on disk, but another
thread may read one that has not been written to its end."""


class Segment(NamedTuple):
  """A part of a program that runs in one piece.

  Attributes:
    run: `run(peers, *values) -> results`.
    reads: where the values come from, variables or literals.
    makes: the variables of the results.
  """

  run: Callable[..., Sequence[Any]]
  reads: Sequence[Any]
  makes: Sequence[Any]


def cut(
  fn: Callable[..., Any], sharding: Sharding | None = None
) -> Callable[..., Any]:
  """Returns `fn` of one worker as `run(peers, *args)`.

  Args:
    fn: a function of one worker, whose collectives are over `AXIS`.
    sharding: where all values lie. Without it, a part is compiled again if it
      gets one from the host that it had from the device before.

  Raises:
    ValueError: when it is called, if a collective is inside a loop, among a
      part of the workers, or of an unknown kind.
  """
  traced: dict[Any, tuple[Callable[..., Any], Any]] = {}
  tracing = threading.Lock()  # Islands may be threads that call this.

  def run(peers: Peers, *args: Any) -> Any:
    leaves, structure = jax.tree.flatten(args)
    key = peers.size, structure, *map(jax.typeof, leaves)
    with tracing:
      if key not in traced:
        closed, shapes = jax.make_jaxpr(
          fn, axis_env=[(AXIS, peers.size)], return_shape=True
        )(*args)
        traced[key] = _program(closed, sharding), jax.tree.structure(shapes)
    program, made = traced[key]
    return jax.tree.unflatten(made, program(peers, *leaves))

  return run


def _program(
  closed: core.ClosedJaxpr, sharding: Sharding | None
) -> Callable[..., list[Any]]:
  """Returns `program(peers, *values) -> results`."""
  jaxpr = closed.jaxpr
  segments, needed = [], set(equations.variables(jaxpr.outvars))
  for eqns in reversed(list(_pieces(jaxpr.eqns))):
    live, needed = needed, needed.union(*map(_reads, eqns))
    if _communicates(eqn := eqns[0]):
      segment = Segment(_on_host(eqn, sharding), eqn.invars, eqn.outvars)
    else:
      segment = _compiled(eqns, live, sharding)
    segments.insert(0, (segment, live))

  def program(peers: Peers, *values: Any) -> list[Any]:
    env = equations.initial(closed, values)
    for segment, live in segments:
      results = segment.run(peers, *equations.read(segment.reads, env))
      env |= zip(segment.makes, results, strict=True)
      env = {name: value for name, value in env.items() if name in live}
    return equations.read(jaxpr.outvars, env)

  return program


def _pieces(eqns: Sequence[Any]) -> Iterator[list[Any]]:
  """Yields each equation that communicates, and those between two of them."""
  for communicates, group in itertools.groupby(eqns, _communicates):
    if communicates:
      yield from ([eqn] for eqn in group)
    else:
      yield list(group)


def _compiled(
  eqns: Sequence[Any], live: set[Any], sharding: Sharding | None
) -> Segment:
  """Returns the equations as a compiled function of what they read."""
  made = dict.fromkeys(var for eqn in eqns for var in eqn.outvars)
  inputs = dict.fromkeys(var for eqn in eqns for var in _reads(eqn))
  reads = [var for var in inputs if var not in made]
  makes = [var for var in made if var in live]

  @functools.partial(jax.jit, in_shardings=sharding)
  def run(*values):
    env = dict(zip(reads, values, strict=True))
    equations.evaluate(eqns, env)
    return equations.read(makes, env)

  ran = threading.Event()

  def segment(peers, *values):
    if ran.is_set():
      return run(*values)
    with _COMPILING:
      results = run(*values)
      ran.set()
      return results

  return Segment(segment, reads, makes)


def _on_host(
  eqn: Any, sharding: Sharding | None
) -> Callable[..., Sequence[Any]]:
  """Returns what the host does for an equation that communicates."""
  name = eqn.primitive.name.removesuffix('_invariant')
  if not _is_over_workers(eqn):  # The collective is inside it.
    if name == 'cond':
      branches = [_program(each, sharding) for each in eqn.params['branches']]

      def choose(peers, index, *values):
        if peers.prepares:
          return [branch(peers, *values) for branch in branches][int(index)]
        return branches[int(index)](peers, *values)

      return choose
    if name == 'jit':
      program = _program(eqn.params['jaxpr'], sharding)
      if eqn.params['name'] != TRAVEL:
        return program

      def travel(peers, *values):
        late = peers.late
        return (
          late.arrive(program, *values) if late else program(peers, *values)
        )

      return travel
    raise ValueError(f'{name}: holds a collective, which islands cannot cut')
  if name == 'axis_index':
    return lambda peers: [np.int32(peers.index)]
  if name not in COLLECTIVES or eqn.params.get('axis_index_groups'):
    raise ValueError(f'{name}: is not a collective among all islands')
  collective = functools.partial(COLLECTIVES[name], **eqn.params)

  def communicate(peers, *values):
    if peers.prepares:
      return [np.zeros(var.aval.shape, var.aval.dtype) for var in eqn.outvars]
    return [collective(peers, np.asarray(value)) for value in values]

  return communicate


def _communicates(eqn: Any) -> bool:
  return _is_over_workers(eqn) or any(
    _communicates(inner) for jaxpr in _inside(eqn) for inner in jaxpr.eqns
  )


def _is_over_workers(eqn: Any) -> bool:
  names = eqn.params.get('axes', eqn.params.get('axis_name', ()))
  return AXIS in (names if isinstance(names, tuple) else (names,))


def _inside(eqn: Any) -> Iterator[core.Jaxpr]:
  for value in eqn.params.values():
    for each in value if isinstance(value, tuple | list) else (value,):
      if isinstance(jaxpr := getattr(each, 'jaxpr', each), core.Jaxpr):
        yield jaxpr


def _reads(eqn: Any) -> list[Any]:
  return equations.variables(eqn.invars)
