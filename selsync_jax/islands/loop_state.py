"""The saved state of an island in a custom loop, and copies for others."""

from collections.abc import Callable, Mapping
import io
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from selsync_jax.array_names import array_name, by_name
from selsync_jax.devices import arrays
from selsync_jax.sync.strategy import Strategy

Save, Load = Callable[[], bytes], Callable[[Any, bytes], None]


class State(NamedTuple):
  """The state of an island after a step, as arrays.

  Attributes:
    step: the number of steps that all islands have taken.
    islands: N, the number of the run's islands.
    members: checksum of the names of the islands that took the step.
    trigger: the trigger's state.
    averager: the averager's state, with the averages in flight.
  """

  step: Any
  islands: Any
  members: Any
  trigger: Any
  averager: Any

  def replaced(self, saved: Mapping[str, Any]) -> 'State':
    """Returns a state that was saved by name and `check`ed, placed as this one.

    Raises:
      ValueError: if it was saved in a run with another number of islands.
    """
    had, islands = int(saved['islands']), int(self.islands)
    if had != islands:
      raise ValueError(
        f'state: islands={had} must be the number of islands of this run, '
        f'{islands}; start from the parameters alone'
      )

    def place(path, like):
      array = saved[array_name(path)]
      return jax.device_put(array, like.sharding, may_alias=False)

    return jax.tree.map_with_path(place, self)


class Copy(NamedTuple):
  """An island's message to another one, which continues from it.

  Attributes:
    params: the parameters.
    state: the island's state.
    content: the rest of the loop's state, as returned by its `save`.
  """

  params: Any
  state: State
  content: bytes


def state(step: int, islands: int, members: int, parts: Any) -> State:
  """Returns a `State` from numbers, and the states of trigger and averager."""
  numbers = jnp.int32(step), jnp.int32(islands), jnp.uint32(members)
  return State(*numbers, *parts)


def check(saved: Any, params: Any, strategy: Strategy) -> None:
  """Raises `ValueError` if a saved state is not one of this strategy."""

  def init(params):
    parts = strategy.trigger.init(params), strategy.averager.init(params)
    return state(0, 0, 0, parts)

  expected = by_name(jax.eval_shape(init, params))
  whose = f'{strategy.trigger} and {strategy.averager}'
  if not isinstance(saved, Mapping):
    kind = type(saved).__name__
    raise ValueError(f'state: must be the dict of island.state(), got {kind}')
  if odd := sorted(saved.keys() ^ expected.keys()):
    what = 'is missing' if odd[0] in expected else 'is none of them'
    raise ValueError(
      f'state: must have the {len(expected)} arrays of {whose}, got '
      f'{len(saved)}; {odd[0]} {what}'
    )
  for name, like in expected.items():
    has = saved[name]
    dtype = getattr(has, 'dtype', type(has).__name__)
    if (dtype, np.shape(has)) != (like.dtype, like.shape):
      raise ValueError(
        f'state: {name} must be {like.dtype}{list(like.shape)}, got '
        f'{dtype}{list(np.shape(has))}'
      )


def check_functions(save: Save | None, load: Load | None) -> None:
  """Raises `ValueError` if a loop gives one function alone, or no bytes."""
  if (save is None) != (load is None):
    given, other = ('load', 'save') if save is None else ('save', 'load')
    raise ValueError(f'{given}: needs {other}; give both or neither')
  if save:
    saved(save)


def saved(save: Save) -> bytes:
  """Returns what `save` returns, if it is bytes."""
  content = save()
  if not isinstance(content, bytes):
    raise ValueError(f'save: must return bytes, got {type(content).__name__}')
  return content


def pack(copy: Copy) -> bytes:
  """Returns a copy as bytes; all processes of the island must call it."""
  file = io.BytesIO()
  own = jax.tree.map(jnp.asarray, (copy.params, copy.state))
  file.writelines(arrays.contents(own))
  file.write(copy.content)
  return file.getvalue()


def unpack(content: bytes, params: Any, state: State) -> Copy:
  """Inverts `pack`, with the placement of other parameters and state."""
  file = io.BytesIO(content)
  params, state = arrays.from_contents(file.read, (params, state))
  return Copy(params, state, file.read())
