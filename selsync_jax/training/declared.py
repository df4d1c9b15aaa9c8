"""The traffic that a user's part declares, beside its traced program.

The bytes of a run, its virtual clock and `plan` follow what parts declare. The
conformance tests compare ours with their programs; a user's part is compared
when a run is set up, which takes a trace of this part alone.
"""

import collections
from collections.abc import Iterable
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


def issued(
  program: traced.Program, conditional: bool = False
) -> collections.Counter[tuple[str, int, bool]]:
  """Counts a program's collectives by kind, bytes, and whether in a branch."""
  found = collections.Counter()
  for eqn in program.eqns:
    name = traced.name(eqn)
    if name in _KINDS:
      nbytes = sum(v.aval.size * v.aval.dtype.itemsize for v in eqn.invars)
      found[_KINDS[name], nbytes, conditional] += 1
    for inner in traced.inside(eqn):
      found += issued(inner, conditional or name == 'cond')
  return found


def check_sends(strategy: Strategy, state: Any, workers: int) -> None:
  """Raises `ValueError` if a user's part declares other traffic than it has.

  Args:
    strategy: the method.
    state: a worker's `TrainState`, or its shapes.
    workers: how many there are.
  """
  sends = strategy.sends(state.shared, workers, state.opt_state)
  given: dict[str, Any] = {'traffic': traffic(sends, state.params, workers)}
  shared, policy = strategy.averaged(state.shared), strategy.optimizer_state

  def trigger(s):
    sees_update = strategy.trigger.traits.sees_update
    applied = {'applied': s.params} if sees_update else {}
    own = s.params, s.trigger_state, s.params
    return strategy.trigger.update(*own, **given, **applied)

  def reducer(s):
    own = s.params, s.reducer_state, s.params
    return strategy.reducer.update(*own, sync=jnp.bool(False))

  def averager(s):
    return strategy.averager.apply(
      strategy.averaged(s.shared), s.averager_state
    )

  def optimizer_state(s):
    return policy.apply(s.opt_state, s.opt_state, s.moments_state)

  # What each works on, and whether it runs at synchronizations alone.
  for function, tree, at_sync in (
    (trigger, state.params, False),
    (reducer, state.params, False),
    (averager, shared, True),
    (optimizer_state, state.opt_state, True),
  ):
    part = getattr(strategy, function.__name__)
    if not _is_ours(part):
      program = jax.make_jaxpr(function, axis_env=[(AXIS, workers)])(state)
      found = issued(program, at_sync)
      _compare(part, found, part.sends(tree, workers), at_sync)


def _is_ours(part: Part) -> bool:
  """Returns whether a part, and all that it holds, is from this package."""
  recipes = [each.recipe for each in (part, *inside(part))]
  return all(
    recipe and recipe.constructor.__module__.startswith('selsync_jax.')
    for recipe in recipes
  )


def _compare(
  part: Part,
  found: collections.Counter[tuple[str, int, bool]],
  sends: Iterable[Collective],
  at_sync: bool,
) -> None:
  """Raises `ValueError` if the bytes of a kind differ, where they are fixed."""
  traced_bytes: collections.defaultdict[tuple[bool, str], float]
  traced_bytes = collections.defaultdict(float)
  declared = traced_bytes.copy()
  for (kind, nbytes, conditional), count in found.items():
    traced_bytes[conditional, kind] += count * nbytes
  for c in sends:
    declared[at_sync or c.at == 'sync' or c.rate < 1, c.kind] += c.nbytes
  scaled = {c.kind for c in sends if c.scale}
  for conditional, kind in sorted({*traced_bytes, *declared}):
    there, here = (each[conditional, kind] for each in (traced_bytes, declared))
    if kind not in scaled and abs(there - here) > 1e-6 * there:
      where = 'synchronizations' if conditional else 'every step'
      at = 'sync' if conditional else 'step'
      raise ValueError(
        f'{part} sends {there:g} bytes by {kind} at {where}, and its sends '
        f'declares {here:g}; for a message of n bytes it must return '
        f'Collective({kind!r}, n, at={at!r})'
      )
