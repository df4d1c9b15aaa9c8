"""Traffic of a method: the collectives of its program, and their cost.

A part of a method does not declare its traffic. JAX traces the part, and this
module reads the collectives and their bytes from the traced program.
`annotated` adds facts that a program lacks: how often a branch is taken, for
example.

References:
  Patarasuk and Yuan, `Bandwidth optimal all-reduce algorithms for clusters of
  workstations`, JPDC 2009 (the ring).
"""

from collections.abc import Callable, Iterable
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from selsync_jax import traced
from selsync_jax.sync import flat


class Kind(NamedTuple):
  """The cost of one kind of collective among N workers in a ring."""

  share: Callable[[int], float]  # Bytes a worker sends, per byte of message.
  rounds: Callable[[int], int]  # The number of consecutive messages.


# The message of each kind, in this order: the reduced vector; one worker's
# contribution to the gathered result; the scattered vector; one worker's data
# for all workers; one worker's data for its partner; the root's data.
KINDS = {
  'all_reduce': Kind(lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1)),
  'all_gather': Kind(lambda n: n - 1, lambda n: n - 1),
  'reduce_scatter': Kind(lambda n: (n - 1) / n, lambda n: n - 1),
  'all_to_all': Kind(lambda n: (n - 1) / n, lambda n: n - 1),
  'exchange': Kind(lambda n: float(n > 1), lambda n: int(n > 1)),
  'broadcast': Kind(lambda n: (n - 1) / n, lambda n: n - 1),
}


class Collective(NamedTuple):
  """One collective that a part of a method issues, see `collectives`.

  Attributes:
    kind: a name in `KINDS`.
    nbytes: bytes of the message, see `KINDS`.
    at: 'step' or 'sync': issued at every step, or at a synchronization.
    rate: the average number of times it is issued, per step or per
      synchronization.
    scale: the metric of the part that multiplies `nbytes` times `rate`, if the
      state decides how long the message is, or whether it is sent; 1 is the
      mean.
    late: the number of steps until its result is needed; it travels while the
      workers take these steps. Infinity means the next synchronization.
    senders: the share of the workers that send; the others wait.
  """

  kind: str
  nbytes: float
  at: str = 'sync'
  rate: float = 1.0
  scale: str | None = None
  late: float = 0
  senders: float = 1.0

  def sent(self, workers: int) -> float:
    """Returns the mean bytes sent by a worker, per step or synchronization."""
    nbytes = self.nbytes * self.rate * self.senders
    return KINDS[self.kind].share(workers) * nbytes


_KINDS = {
  'psum': 'all_reduce',
  'pmax': 'all_reduce',
  'pmin': 'all_reduce',
  'all_gather': 'all_gather',
  'reduce_scatter': 'reduce_scatter',
  'psum_scatter': 'reduce_scatter',
  'ppermute': 'exchange',
  'all_to_all': 'all_to_all',
}
"""The kinds of JAX's collective primitives, by name."""

_SILENT = {'axis_index', 'axis_size', 'pvary', 'pcast', 'typed_as_equal'}
"""Primitives over an axis that send nothing."""

_SAYS = 'sends '
"""The prefix of an `annotated` function's name; its facts follow, in JSON."""


def annotated(
  function: Callable[..., Any],
  *,
  rate: float = 1.0,
  share: float = 1.0,
  scale: str | None = None,
  late: float = 0,
) -> Callable[..., Any]:
  """Annotates a function's collectives with facts that its program lacks.

  The function computes the same. Annotations are optional: without them, the
  branch of a conditional that sends most counts as taken.

  Args:
    function: a function of arrays that communicates.
    rate: how often the function runs, per run of its caller.
    share: the share of its messages that counts, if they are padded.
    scale: see `Collective`.
    late: see `Collective`.

  Example:
    >>> def vote(flag):
    ...   return jax.lax.psum(flag, 'workers')
    >>> def update(due, flag):  # `due` at every fourth step.
    ...   often = annotated(vote, rate=1 / 4)
    ...   return jax.lax.cond(due, often, lambda flag: 0, flag)
    >>> found = collectives(update, True, 1, workers=8, axes=['workers'])
    >>> [(each.kind, each.nbytes, each.rate) for each in found]
    [('all_reduce', 4.0, 0.25)]
  """

  def call(*args):
    return function(*args)

  facts = dict(rate=rate, share=share, scale=scale, late=late)
  call.__name__ = _SAYS + json.dumps(facts)
  return jax.jit(call)


def collectives(
  function: Callable[..., Any],
  *args: Any,
  workers: int,
  axes: Iterable[str],
  at: str = 'step',
) -> tuple[Collective, ...]:
  """Returns the collectives of one worker's function, in program order.

  A `while` loop counts as one pass, and empty messages do not count.

  Args:
    function: a function that runs inside the mapped workers.
    *args: the function's arguments, or their shapes.
    workers: the number of workers.
    axes: the names that the workers' axis may have.
    at: see `Collective`.
  """
  shapes = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jax.dtypes.result_type(x)),
    args,
  )
  env = [(name, workers) for name in axes]
  try:
    program = jax.make_jaxpr(function, axis_env=env)(*shapes)
  except NameError as error:  # A user's part names another axis.
    names = ' or '.join(sorted(name for name, _ in env))
    raise ValueError(
      f'{error}; here the axis of the workers is {names}: give the part an '
      'argument axis_name, and decorate its function with selsync_jax.part'
    ) from error
  found = _issued(program, {name for name, _ in env}, workers)
  return tuple(c._replace(at=at) for c in found if c.nbytes and c.rate)


def _issued(
  program: traced.Program, axes: set[str], workers: int
) -> list[Collective]:
  found = []
  for eqn in program.eqns:
    name = traced.name(eqn)
    if name in _KINDS and axes.intersection(traced.axes(eqn)):
      nbytes = sum(v.aval.size * v.aval.dtype.itemsize for v in eqn.invars)
      # A worker without a partner sends nothing.
      moves = [i != j for i, j in eqn.params.get('perm', ())]
      senders = sum(moves) / workers if moves else 1.0
      found.append(Collective(_KINDS[name], nbytes, senders=senders))
      continue
    if axes.intersection(traced.axes(eqn)) and name not in _SILENT:
      raise ValueError(f'{name} is a collective whose traffic is not known')
    inside = [_issued(each, axes, workers) for each in traced.inside(eqn)]
    if name == 'cond':
      inside = [_taken(inside)]
    for each in inside:
      times = eqn.params['length'] if name == 'scan' else 1
      found += times * _with_facts(eqn.params.get('name'), each)
  return found


def _taken(branches: list[list[Collective]]) -> list[Collective]:
  """Returns the collectives of a conditional.

  These are the ones with a rate, and the rest of the branch that sends most.
  """
  often = [c for branch in branches for c in branch if c.rate != 1]
  always = [[c for c in branch if c.rate == 1] for branch in branches]
  return often + max(always, key=lambda branch: sum(c.nbytes for c in branch))


def _with_facts(name: Any, sent: list[Collective]) -> list[Collective]:
  """Adds the facts from the name of an `annotated` function."""
  if not (isinstance(name, str) and name.startswith(_SAYS)):
    return sent
  facts = json.loads(name.removeprefix(_SAYS))
  return [
    c._replace(
      nbytes=c.nbytes * facts['share'],
      rate=c.rate * facts['rate'],
      scale=facts['scale'] or c.scale,
      late=max(facts['late'], c.late),
    )
    for c in sent
  ]


class Traffic(NamedTuple):
  """Bytes that one worker sends."""

  step: float  # At every step.
  sync: float  # At a synchronization, in addition.
  bsp: float  # At every step under BSP.
  injected: float = 0.0  # At every step for examples, in addition.
  # Bytes included above that a metric multiplies: step or sync, metric, bytes.
  scaled: tuple[tuple[str, str, float], ...] = ()


def nbytes(tree: Any) -> int:
  """Returns the bytes of a tree's floating-point arrays or their shapes.

  Counters do not travel: `consensus` leaves them as they are.
  """
  return sum(leaf.size * leaf.dtype.itemsize for leaf in flat.floats(tree))


def sent(collectives: Iterable[Collective], at: str, workers: int) -> float:
  """Returns the bytes that a worker sends in the collectives issued `at`."""
  return sum(c.sent(workers) for c in collectives if c.at == at)


def traffic(
  collectives: Iterable[Collective], params: Any, workers: int
) -> Traffic:
  """Returns the bytes that each of N workers sends in a method's collectives.

  `params` are one worker's parameters, or their shapes, as BSP sends them.
  """
  collectives = tuple(collectives)
  # `consensus` forms the mean in float32 at least.
  summed = sum(x.size * max(x.dtype.itemsize, 4) for x in flat.floats(params))
  return Traffic(
    step=sent(collectives, 'step', workers),
    sync=sent(collectives, 'sync', workers),
    bsp=Collective('all_reduce', summed).sent(workers),
    scaled=tuple(
      (c.at, c.scale, c.sent(workers)) for c in collectives if c.scale
    ),
  )
