"""One worker's program, cut where it needs the other workers.

The parts between the cuts are compiled. At a cut, the host hands the worker's
values to its peers and continues with their answer. So a function that the
mappers map over the workers of one program, whatever its method, also runs
where each worker is a separate program.

A conditional that communicates is cut, too: the host reads its predicate and
runs one branch. A conditional that only chooses between values is also cut, and
the host copies none. No compiled part waits for another worker, so a message
in another thread never blocks XLA or the device. Parts that are the same for
another number of workers are compiled once: when one worker has ended, the
others need not wait for the compiler.
"""

from collections.abc import (
  Callable,
  Container,
  Generator,
  Hashable,
  Iterator,
  Sequence,
)
import contextlib
import functools
import itertools
import threading
from typing import Any, NamedTuple

import jax
import numpy as np

from selsync_jax import traced
from selsync_jax.cluster.protocol.member import Regrouped
from selsync_jax.devices import arrays
from selsync_jax.devices.slices import ONE, Slices
from selsync_jax.islands.collectives import COLLECTIVES
from selsync_jax.islands.peers import Peers
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.delay import TRAVEL

_NO_MESH = jax.sharding.AbstractMesh((), ())
_LAUNCHING = threading.Lock()
"""Held by the thread that compiles: JAX keeps programs on disk, but another
thread may read a partly written program. Also held to launch a
program of several devices, which must all run the programs in one order."""


class Form(NamedTuple):
  """Layout of a worker's values where its program is cut.

  Attributes:
    devices: devices of this worker. If they are given, all values lie on them
      with a leading axis of size 1, for this worker alone.
    processes: number of the worker's processes; in a replay, of the original's.
  """

  devices: Slices | None = None
  processes: int = 1

  def own(self, x: Any) -> Any:
    """Returns the worker's array."""
    return x.reshape(x.shape[1:]) if self.devices else x

  def row(self, x: Any) -> Any:
    """Inverts `own`."""
    return x[None] if self.devices else x

  @contextlib.contextmanager
  def entered(self) -> Generator[None]:
    """Enters a context in which a program of these devices is traced."""
    with contextlib.ExitStack() as stack:
      if self.devices:  # A mesh of another size has to be left first.
        for mesh in _NO_MESH, self.devices.mesh.abstract_mesh:
          stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
      yield

  @property
  def speaking(self) -> 'Form':
    """The form in the process that speaks for a worker of several processes."""
    return Form(ONE) if self.devices and self.processes > 1 else self

  def whole(self, tree: Any) -> Any:
    """Returns arrays that each of the worker's processes has.

    If there are several processes, the arrays are on the host.
    """

    def whole(x):
      if not isinstance(x, jax.Array):
        return x
      is_here = self.processes == 1 and x.is_fully_addressable
      return x if is_here else np.asarray(arrays.everywhere(x))

    return jax.tree.map(whole, tree)

  def compiled(
    self,
    run: Callable[..., Any],
    reads: Sequence[Any],
    makes: Sequence[Any],
    batch: Container[Any],
  ) -> Callable[..., Any]:
    """Compiles a function of variables' values, for their placement.

    Values with another placement would compile the program again, for example a
    value from the host that was on the device before. `reads` and `makes` are
    the variables of the values and of the results.
    """
    if not self.devices:
      return jax.jit(run)
    devices = self.devices

    def sharding(var):
      of = devices.batch_sharding if var in batch else devices.sharding
      return of((1, *var.aval.shape))

    before = [*map(sharding, reads)]
    compiled = jax.jit(
      run, in_shardings=before, out_shardings=[*map(sharding, makes)]
    )
    if not devices.spans_processes:  # Otherwise jit takes no host arrays.
      return compiled
    return lambda *values: compiled(*map(arrays.placed, values, before))


Compiled = dict[Hashable, Callable[..., Any]]
"""Compiled segments, by the computation that they do."""

PLAIN = Form()
"""The form of a worker's own arrays, with any placement."""


class Segment(NamedTuple):
  """A part of a program that runs without interruption.

  Attributes:
    run: `run(peers, *values) -> results`.
    reads: variables or literals that give the values.
    makes: the variables of the results.
    sends: whether it may exchange messages.
  """

  run: Callable[..., Sequence[Any]]
  reads: Sequence[Any]
  makes: Sequence[Any]
  sends: bool = False


class Begun(NamedTuple):
  """A program that has run until it first needs the other workers.

  Attributes:
    rest: `rest(peers, values) -> results`, which deletes values that it needs
      no longer.
    values: the program's values by variable.
  """

  rest: Callable[[Peers, dict[Any, Any]], Any]
  values: dict[Any, Any]

  def finish(self, peers: Peers) -> Any:
    """Returns the results, once."""
    return self.rest(peers, self.values)

  def copy(self) -> 'Begun':
    """Returns the same for another `finish`, and shares the arrays."""
    return self._replace(values={**self.values})


class Cut(NamedTuple):
  """A program `run(peers, *args)` of one worker, which may pause once.

  Attributes:
    begin: runs it until it first needs the other workers.
  """

  begin: Callable[..., Begun]

  def __call__(self, peers: Peers, *args: Any) -> Any:
    return self.begin(peers, *args).finish(peers)


def complete(peers: Peers, run: Callable[..., Any], *args: Any) -> Any:
  """Returns `run(peers, *args)`, which exchanges messages.

  If islands end before all have completed it, or the coordinator does, the
  others all run it again. So no island continues with a result that another
  one does not have.
  """
  while True:
    try:
      result = run(peers, *args)
      peers.conclude()
      return result
    except Regrouped:
      peers.regroup()


def cut(fn: Callable[..., Any], form: Form = PLAIN) -> Cut:
  """Returns `fn` of one worker as `run(peers, *args)`.

  Args:
    fn: a function of one worker, whose collectives are over `AXIS`.
    form: layout of arguments and results. Arguments that are on the host
      are batches, if the worker has explicit devices.

  Raises:
    ValueError: at a call, if a collective is inside a loop, is among a
      part of the workers, or has an unknown kind.
  """
  programs: dict[Any, tuple[Cut, Any]] = {}
  compiled: Compiled = {}
  tracing = threading.Lock()  # Islands may be threads that call this.

  def begin(peers: Peers, *args: Any) -> Begun:
    leaves, structure = jax.tree.flatten(args)
    on_host = [not isinstance(leaf, jax.Array) for leaf in leaves]
    key = peers.size, structure, *on_host, *map(jax.typeof, leaves)
    with form.entered():
      with tracing:
        if key not in programs:
          if form.devices:
            own = functools.partial(jax.tree.map, form.own)
            args = jax.eval_shape(own, args)
          whole, shapes = jax.make_jaxpr(
            fn, axis_env=[(AXIS, peers.size)], return_shape=True
          )(*args)
          batch = {*itertools.compress(whole.invars, on_host)}
          program = _program(whole, form, compiled, batch)
          programs[key] = program, jax.tree.structure(shapes)
      program, made = programs[key]
      rest, values = program.begin(peers, *leaves)

    def finish(peers, values):
      with form.entered():
        return jax.tree.unflatten(made, rest(peers, values))

    return Begun(finish, values)

  return Cut(begin)


def _program(
  whole: traced.Program,
  form: Form,
  compiled: Compiled,
  batch: Container[Any] = (),
) -> Cut:
  """Returns `program(peers, *values) -> results`; extends `Compiled`."""
  segments, needed = [], set(traced.variables(whole.outvars))
  for eqns in reversed(list(_pieces(whole.eqns))):
    live, needed = needed, needed.union(*map(_reads, eqns))
    if _is_cut(eqn := eqns[0]):
      run = _on_host(eqn, form, compiled, batch)
      segment = Segment(run, eqn.invars, eqn.outvars, _sends(eqn))
    else:
      segment = _compiled(eqns, live, form, compiled, batch)
    segments.insert(0, (segment, live))
  constants = {
    var: form.row(value) for var, value in traced.constants(whole).items()
  }

  def literal(value):
    return form.row(np.asarray(value, jax.typeof(value).dtype))

  first = [*itertools.takewhile(lambda each: not each[0].sends, segments)]

  def run(peers, env, segments):
    for segment, live in segments:
      read = traced.read(segment.reads, env, literal)
      env.update(zip(segment.makes, segment.run(peers, *read), strict=True))
      for name in env.keys() - live:
        del env[name]

  def begin(peers, *values):
    env = constants | dict(zip(whole.invars, values, strict=True))
    run(peers, env, first)
    return Begun(finish, env)

  def finish(peers, env):
    run(peers, env, segments[len(first) :])
    return traced.read(whole.outvars, env, literal)

  return Cut(begin)


def _pieces(eqns: Sequence[Any]) -> Iterator[list[Any]]:
  """Yields each equation that is cut, and the compiled ones between two cuts.

  Scalars are computed as early as possible, which leaves few pieces.
  """
  cuts, compiled, made = [], [[]], {}
  for eqn in eqns:
    place = len(cuts)
    if _is_cut(eqn):
      cuts.append([eqn])
      compiled.append([])
      place += 1
    else:
      if all(var.aval.size == 1 for var in eqn.outvars):
        place = max((made.get(var, 0) for var in _reads(eqn)), default=0)
      compiled[place].append(eqn)
    made |= dict.fromkeys(eqn.outvars, place)
  pairs = itertools.zip_longest(compiled, cuts, fillvalue=[])
  yield from filter(None, itertools.chain.from_iterable(pairs))


def _compiled(
  eqns: Sequence[Any],
  live: set[Any],
  form: Form,
  compiled: Compiled,
  batch: Container[Any],
) -> Segment:
  """Returns the equations as a compiled function of their inputs."""
  made = dict.fromkeys(var for eqn in eqns for var in eqn.outvars)
  inputs = dict.fromkeys(var for eqn in eqns for var in _reads(eqn))
  reads = [var for var in inputs if var not in made]
  makes = [var for var in made if var in live]

  def evaluate(*values):
    env = dict(zip(reads, map(form.own, values), strict=True))
    traced.evaluate(eqns, env)
    return [form.row(env[var]) for var in makes]

  given = tuple(var in batch for var in reads)
  key = form, traced.structure(reads, makes, eqns), given
  if key not in compiled:
    run = form.compiled(evaluate, reads, makes, batch)
    compiled[key] = _launched(run, form)
  return Segment(compiled[key], reads, makes)


def _launched(run: Callable[..., Any], form: Form) -> Callable[..., Any]:
  """Returns `run` of a segment such that threads take turns compiling."""
  ran = threading.Event()
  is_alone = not form.devices or form.devices.devices_per_worker == 1

  def segment(peers, *values):
    if is_alone and ran.is_set():
      return run(*values)
    with _LAUNCHING:
      results = run(*values)
      ran.set()
      return results

  return segment


def _on_host(
  eqn: Any, form: Form, compiled: Compiled, batch: Container[Any]
) -> Callable[..., Sequence[Any]]:
  """Returns the host's function for an equation that is cut."""

  def inner(whole, atoms):
    pairs = zip(whole.invars, atoms, strict=True)
    given = {x for x, v in pairs if traced.variables([v]) and v in batch}
    return _program(whole, form, compiled, given)

  name = traced.name(eqn)
  if not _is_over_workers(eqn):  # Then any collective is inside it.
    if name == 'cond':
      branches = [
        inner(each, eqn.invars[1:]) for each in eqn.params['branches']
      ]

      def choose(peers, index, *values):
        chosen = np.asarray(index).item()
        if peers.prepares:
          return [branch(peers, *values) for branch in branches][chosen]
        return branches[chosen](peers, *values)

      return choose
    if name == 'jit':
      if eqn.params['name'] != TRAVEL:
        return inner(eqn.params['jaxpr'], eqn.invars)
      alone = form.speaking
      program = _program(eqn.params['jaxpr'], alone, compiled)

      def travel(peers, *values):
        values = form.whole(values)

        def compute(first):
          with alone.entered():
            return program(first, *values)

        return form.whole(peers.arrive(compute))

      return travel
    raise ValueError(f'{name}: holds a collective, which islands cannot cut')
  if name == 'axis_index':
    return lambda peers: [form.row(np.asarray(peers.index, np.int32))]
  if name not in COLLECTIVES or eqn.params.get('axis_index_groups'):
    raise ValueError(f'{name}: is not a collective among all islands')
  collective = functools.partial(COLLECTIVES[name], **eqn.params)

  def communicate(peers, *values):
    if peers.prepares:
      results = [
        np.zeros(var.aval.shape, var.aval.dtype) for var in eqn.outvars
      ]
    else:
      own = [form.own(np.asarray(value)) for value in form.whole(values)]
      results = peers.led(lambda first: [collective(first, x) for x in own])
    return [*map(form.row, results)]

  return communicate


def _is_cut(eqn: Any) -> bool:
  return _communicates(eqn) or (
    traced.name(eqn) == 'cond'
    and not any(branch.eqns for branch in traced.inside(eqn))
  )


def _communicates(eqn: Any) -> bool:
  return any(map(_is_over_workers, _all(eqn)))


def _sends(eqn: Any) -> bool:
  return any(
    _is_over_workers(each) and traced.name(each) != 'axis_index'
    for each in _all(eqn)
  )


def _all(eqn: Any) -> Iterator[Any]:
  """Yields an equation, and all equations inside it."""
  yield eqn
  for program in traced.inside(eqn):
    for inner in program.eqns:
      yield from _all(inner)


def _is_over_workers(eqn: Any) -> bool:
  return AXIS in traced.axes(eqn)


def _reads(eqn: Any) -> list[Any]:
  return traced.variables(eqn.invars)
