"""The decision of a trigger, read from an optimizer's state."""

from collections.abc import Iterator
from typing import Any
import warnings

import jax
from jax.tree_util import SequenceKey
from jaxtyping import Array, Bool
import optax

from selsync_jax.sync.change import MeasureState

# Wrappers that leave out calls, or make them on some workers only.
_SKIPPING = (
  optax.ApplyIfFiniteState,
  optax.ConditionallyMaskState,
  optax.ConditionallyTransformState,
  optax.contrib.SAMState,
)
_WRAPPERS = (optax.MultiStepsState, *_SKIPPING)


def decision(opt_state: Any) -> Bool[Array, '']:
  """Returns whether the call that made `opt_state` asks to synchronize.

  The chain may have one trigger, at any place. If it is made of others, as
  `any_of` is, its own outcome counts. Around the chain may be
  `optax.MultiSteps`, which keeps the chain's state between real updates; the
  decision is then false at the calls in between.

  It warns of a trigger that measures gradients and is not the first in an
  `optax.chain`: clipping, for example, hides how large they are.

  Args:
    opt_state: the optimizer's state after the update.

  Returns:
    bool [], equal on all workers.

  Raises:
    ValueError: if there is not exactly one trigger, or if it is inside a
      wrapper that runs it only at some calls or on some workers.

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
      'any_of makes one of several'
    )
  if _measures_late(opt_state):
    warnings.warn(
      'the trigger measures what the transformations before it return, which '
      'may not be the gradient; put it first in the chain: '
      'optax.chain(trigger, ...)',
      stacklevel=2,
    )
  return flags[0]


def _is_trigger(state: Any) -> bool:
  return hasattr(state, 'sync')


def _measures_late(state: Any) -> bool:
  """Whether a trigger that measures is not the first of a chain."""

  def measures(trigger):
    parts = jax.tree.leaves(trigger, is_leaf=_is_measure)
    return any(map(_is_measure, parts))

  return any(
    measures(node) and any(isinstance(k, SequenceKey) and k.idx for k in path)
    for path, node in jax.tree.leaves_with_path(state, is_leaf=_is_trigger)
  )


def _is_measure(state: Any) -> bool:
  return isinstance(state, MeasureState)


def _flags(state: Any) -> Iterator[Any]:
  """Yields the flag of each trigger that is not inside another."""
  nodes = jax.tree.leaves(
    state, is_leaf=lambda x: _is_trigger(x) or isinstance(x, _WRAPPERS)
  )
  for node in nodes:
    if _is_trigger(node):
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
      f'{name} with should_skip_update_fn leaves out calls on single workers, '
      'where the others wait for the vote; use it without, or put the trigger '
      'before it: optax.chain(trigger, ...)'
    )
  return wrapper.mini_step == 0
