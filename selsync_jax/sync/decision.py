"""The decision of a trigger, read from an optimizer's state."""

from collections.abc import Callable, Iterator
import functools
import operator
from typing import Any, NamedTuple
import warnings

import jax
from jaxtyping import Array, Bool
import optax

from selsync_jax.sync.agreement import agreed
from selsync_jax.sync.budget import asks_travel
from selsync_jax.sync.change import MeasureState
from selsync_jax.sync.consensus import AXIS, is_trigger
from selsync_jax.sync.fda import FDAState
from selsync_jax.sync.transformation import superseded

# Wrappers that skip calls, or make calls on only some workers.
_SKIPPING = (
  optax.ApplyIfFiniteState,
  optax.ConditionallyMaskState,
  optax.ConditionallyTransformState,
  optax.contrib.SAMState,
)
_WRAPPERS = (optax.MultiStepsState, *_SKIPPING)


def decision(opt_state: Any, *, axis_name: str = AXIS) -> Bool[Array, '']:
  """Returns whether the call that made `opt_state` asks to synchronize.

  The chain may have one trigger, at any place. If the trigger is made of
  others, as `any_of` is, the outer trigger's outcome counts. The chain may be
  wrapped in `optax.MultiSteps`, which keeps the chain's state between real
  updates; the decision is then false at the calls in between.

  It warns if a trigger measures gradients but is not the first in an
  `optax.chain`: clipping, for example, hides how large gradients are. `fda`
  measures updates, so it must be the last. It also warns if an update has
  already replaced the given state.

  Args:
    opt_state: the optimizer's state after the update.
    axis_name: the name of the mapped axis.

  Returns:
    bool [], equal on all workers.

  Raises:
    ValueError: if there is not exactly one trigger, if a wrapper runs the
      trigger only at some calls or on some workers, or if the trigger cannot
      decide at its place in the chain.

  Example:
    >>> import jax.numpy as jnp, optax
    >>> import selsync_jax as ss
    >>> tx = optax.MultiSteps(optax.chain(ss.every(2), optax.sgd(0.1)), 3)
    >>> state = tx.init(jnp.zeros(2))
    >>> for call in range(1, 13):
    ...   _, state = tx.update(jnp.ones(2), state)
    ...   if ss.decision(state):
    ...     print(call)
    6
    12
  """
  flags = list(_flags(opt_state))
  if len(flags) != 1:
    raise ValueError(
      f'the optimizer needs one trigger, and its state has {len(flags)}; '
      'any_of combines several'
    )
  if superseded.get(id(flags[0])) is flags[0]:
    warnings.warn(
      'the decision is from the step before: opt_state went into tx.update; '
      'pass the state that tx.update returned',
      stacklevel=2,
    )
  _check_place(_place(opt_state))
  return agreed(flags[0], axis_name)


class _Place(NamedTuple):
  """A trigger's state, all states before it, and the rest of its chain."""

  trigger: Any
  before: list[Any]
  after: list[Any]


def _place(opt_state: Any) -> _Place:
  """Returns the place of the first trigger in an optimizer's state."""
  node, before, after = opt_state, [], []
  while not is_trigger(node):
    inside = jax.tree.leaves(
      node, is_leaf=functools.partial(operator.is_not, node)
    )
    index = next(i for i, x in enumerate(inside) if _any(is_trigger, x))
    # The state of a chain is a tuple of states, which are tuples themselves.
    if type(node) is tuple and all(isinstance(x, tuple) for x in inside):
      before, after = before + inside[:index], inside[index + 1 :]
    node = inside[index]
  return _Place(node, before, after)


def _any(matches: Callable[[Any], bool], state: Any) -> bool:
  """Whether any node of a state matches."""
  return any(map(matches, jax.tree.leaves(state, is_leaf=matches)))


def _has(state: Any, kind: type) -> bool:
  return _any(lambda node: isinstance(node, kind), state)


def _check_place(place: _Place) -> None:
  """Warns of a trigger's place in a chain, or raises `ValueError`.

  A tuple of states need not be a chain, so most mistakes are only warnings.
  """
  trigger, before, after = place
  measures = _has(trigger, MeasureState)
  if asks_travel(trigger):
    raise ValueError(
      'link_share is for islands, which measure how long an average travels; '
      'set lssr in place of link_share'
    )
  if _has(after, optax.MultiStepsState):
    raise ValueError(
      'the trigger decides at every micro-step, because MultiSteps comes after '
      'it; wrap the whole chain: optax.MultiSteps(optax.chain(trigger, ...), k)'
    )
  fda = _has(trigger, FDAState)
  if fda and measures and (before or after):
    line = (
      'the trigger measures gradients and updates, and no place in a chain has '
      'both; use fda alone, or a trigger without it'
    )
  elif fda and after:
    line = (
      'fda measures updates, and transformations after it may change them; put '
      'it last in the chain: optax.chain(..., ss.fda(theta))'
    )
  elif measures and before:
    line = (
      'the trigger measures what the transformations before it return, which '
      'may not be the gradient; put it first in the chain: '
      'optax.chain(trigger, ...)'
    )
  else:
    return
  warnings.warn(line, stacklevel=3)


def _flags(state: Any) -> Iterator[Any]:
  """Yields the flag of each trigger that is not inside another."""
  nodes = jax.tree.leaves(
    state, is_leaf=lambda x: is_trigger(x) or isinstance(x, _WRAPPERS)
  )
  for node in nodes:
    if is_trigger(node):
      yield node.sync
    elif isinstance(node, _WRAPPERS):
      for flag in _flags(tuple(node)):
        yield flag & _ran(node)


def _ran(wrapper: Any) -> Any:
  """Returns whether the last call ran the trigger inside a wrapper."""
  name = type(wrapper).__name__.removesuffix('State')
  if isinstance(wrapper, _SKIPPING):
    raise ValueError(
      f'{name} does not run the trigger inside it at every call; put the '
      'trigger before it: optax.chain(trigger, ...)'
    )
  if jax.tree.leaves(wrapper.skip_state):
    raise ValueError(
      f'{name} with should_skip_update_fn skips calls on some workers, while '
      'the others wait for the vote; leave the function out, or put the '
      'trigger first: optax.chain(trigger, ...)'
    )
  return wrapper.mini_step == 0
