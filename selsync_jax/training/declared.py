"""The traffic that a user's part declares, beside its traced program.

The bytes of a run, its virtual clock and `plan` follow what parts declare. The
conformance tests compare ours with their programs; a user's part is compared
when a run is set up, which takes a trace of this part alone.
"""

import collections
from collections.abc import Callable, Iterable
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from selsync_jax import traced
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.part import inside
from selsync_jax.sync.part import Part
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.traffic import Collective
from selsync_jax.sync.traffic import traffic

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
"""By the name of JAX's primitive, the kind of collective."""


Issued = collections.Counter[tuple[str, int, bool]]
"""The counts of collectives by kind, bytes, and whether in a branch."""


def issued(
  program: traced.Program,
  conditional: bool = False,
  join: Callable[[Issued, Issued], Issued] = operator.add,
) -> Issued:
  """Counts a program's collectives; a `while` runs once.

  `join` combines the counts of two branches of a conditional.
  """
  found: Issued = collections.Counter()
  for eqn in program.eqns:
    name = traced.name(eqn)
    if name in _KINDS:
      nbytes = sum(v.aval.size * v.aval.dtype.itemsize for v in eqn.invars)
      found[_KINDS[name], nbytes, conditional] += 1
    inside = [
      issued(inner, conditional or name == 'cond', join)
      for inner in traced.inside(eqn)
    ]
    both = join if name == 'cond' else operator.add
    times = eqn.params['length'] if name == 'scan' else 1
    for key, count in functools.reduce(both, inside, Issued()).items():
      found[key] += count * times
  return found


def _in_while(program: traced.Program) -> set[str]:
  """Returns the kinds of collectives that run until a condition holds."""
  found = set()
  for eqn in program.eqns:
    for inner in traced.inside(eqn):
      if traced.name(eqn) == 'while':
        found |= {kind for kind, *_ in issued(inner)}
      found |= _in_while(inner)
  return found


def check_sends(strategy: Strategy, state: Any, workers: int) -> None:
  """Raises `ValueError` if a user's part declares other traffic than it has.

  Args:
    strategy: the method.
    state: a worker's `TrainState`, or its shapes.
    workers: how many there are.
  """
  sends = strategy.sends(state.shared, workers, state.moments)
  given: dict[str, Any] = {'traffic': traffic(sends, state.trained, workers)}
  shared, policy = strategy.averaged(state.shared), strategy.optimizer_state

  def trigger(s):
    sees_update = strategy.trigger.traits.sees_update
    applied = {'applied': s.trained} if sees_update else {}
    own = s.trained, s.trigger_state, s.trained
    return strategy.trigger.update(*own, **given, **applied)

  def reducer(s):
    own = s.trained, s.reducer_state, s.trained
    return strategy.reducer.update(*own, sync=jnp.bool(False))

  def averager(s):
    return strategy.averager.when_due(
      strategy.averaged(s.shared), s.averager_state
    )

  def optimizer_state(s):
    return policy.apply(s.moments, s.moments, s.moments_state)

  # The tree of each part, and whether it runs at synchronizations alone.
  for function, tree, at_sync in (
    (trigger, state.trained, False),
    (reducer, state.trained, False),
    (averager, shared, True),
    (optimizer_state, state.moments, True),
  ):
    part = getattr(strategy, function.__name__)
    if not _is_ours(part):
      program = jax.make_jaxpr(function, axis_env=[(AXIS, workers)])(state)
      # Messages of several branches may each count, or one of them at a time.
      found = [
        issued(program, at_sync, j) for j in (operator.add, operator.or_)
      ]
      sends = part.sends(tree, workers)
      varies = {c.kind for c in sends if c.scale} | _in_while(program)
      _compare(part, found, sends, at_sync, varies)


def _is_ours(part: Part) -> bool:
  """Returns whether a part, and all that it holds, is from this package."""
  recipes = [each.recipe for each in (part, *inside(part))]
  return all(
    recipe and recipe.constructor.__module__.startswith('selsync_jax.')
    for recipe in recipes
  )


def _compare(
  part: Part,
  found: Iterable[Issued],
  sends: Iterable[Collective],
  at_sync: bool,
  varies: set[str],
) -> None:
  """Raises `ValueError` if no count has the bytes that are declared of a kind.

  Kinds whose bytes vary are not compared.
  """
  declared: collections.defaultdict[tuple[bool, str], float]
  declared = collections.defaultdict(float)
  for c in sends:
    declared[at_sync or c.at == 'sync' or c.rate < 1, c.kind] += c.nbytes
  traced_bytes = [_bytes(each) for each in found]
  for conditional, kind in sorted({*traced_bytes[0], *declared}):
    here = declared[conditional, kind]
    there = [each[conditional, kind] for each in traced_bytes]
    if kind not in varies and all(abs(n - here) > 1e-6 * n for n in there):
      where = 'synchronizations' if conditional else 'every step'
      at = 'sync' if conditional else 'step'
      raise ValueError(
        f'{part} sends {there[0]:g} bytes by {kind} at {where}, and its sends '
        f'declares {here:g}; for a message of n bytes it must return '
        f'Collective({kind!r}, n, at={at!r})'
      )


def _bytes(found: Issued) -> collections.defaultdict[tuple[bool, str], float]:
  """Returns the bytes of collectives, by whether in a branch, and kind."""
  total = collections.defaultdict(float)
  for (kind, nbytes, conditional), count in found.items():
    total[conditional, kind] += count * nbytes
  return total
