"""Arrays that are computed when they are needed, or never.

Virtual time does not depend on arrays. So the processes of a simulation pass
promises around: a `Value` is a function and its inputs. All of them are
computed together later, the gradients in batches. A replay before a resume,
and a simulation that is run for its times alone, compute none.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
import weakref

import jax
import numpy as np

Tree = Any


class Value:
  """A tree of arrays that may not be computed yet.

  Attributes:
    index: the value's index in the simulation, in order of creation.
    kind: the name of the tree's shapes, see `Numerics.shapes`.
    tree: the arrays, or `None` before they are computed.
  """

  __slots__ = ('__weakref__', 'function', 'index', 'inputs', 'kind', 'tree')

  def __init__(
    self,
    index: int,
    kind: str,
    function: Callable[..., Tree] | None,
    inputs: tuple[Any, ...],
  ):
    self.index, self.kind = index, kind
    self.function, self.inputs = function, inputs
    self.tree: Tree = None

  @property
  def is_known(self) -> bool:
    """Whether the arrays have been computed."""
    return self.tree is not None

  @property
  def is_ready(self) -> bool:
    """Whether all inputs are known."""
    return all(
      known.is_known for known in self.inputs if isinstance(known, Value)
    )

  def arguments(self) -> list[Any]:
    """Returns the inputs, with arrays in place of values."""
    return [x.tree if isinstance(x, Value) else x for x in self.inputs]

  def fulfil(self, tree: Tree) -> None:
    """Sets the arrays, and drops the function and its inputs."""
    self.tree, self.function, self.inputs = tree, None, ()


class Values:
  """The values of a simulation that are still referenced.

  Args:
    batch: a function that computes values of kind `gradient`, from a list of
      arguments to a list of trees. Other values are computed one by one.
    computes: whether values are computed at all.
  """

  def __init__(
    self,
    batch: Callable[[Sequence[Sequence[Any]]], Sequence[Tree]] | None = None,
    computes: bool = True,
  ):
    self._batch, self.computes = batch, computes
    self._count = 0
    self._live: weakref.WeakValueDictionary[int, Value] = (
      weakref.WeakValueDictionary()
    )

  def create(
    self, kind: str, function: Callable[..., Tree] | None, *inputs: Any
  ) -> Value:
    """Returns the value `function(*inputs)`, which is computed later.

    Args:
      kind: the name of the result's shapes, see `Numerics.shapes`.
      function: a function of arrays; `None` for a gradient.
      *inputs: values, whose arrays the function gets; or anything else.
    """
    if not self.computes:  # Do not keep the inputs alive.
      function, inputs = None, ()
    value = Value(self._count, kind, function, inputs)
    self._live[self._count] = value
    self._count += 1
    return value

  def evaluate(self) -> None:
    """Computes every value that is still referenced."""
    waiting = [v for v in self._in_order() if not v.is_known]
    while waiting and self.computes:
      blocked, gradients = [], []
      for value in waiting:
        if not value.is_ready:
          blocked.append(value)
        elif value.function is None:
          gradients.append(value)
        else:
          value.fulfil(value.function(*value.arguments()))
      if gradients and self._batch:
        trees = self._batch([v.arguments() for v in gradients])
        for value, tree in zip(gradients, trees, strict=True):
          value.fulfil(tree)
      waiting = blocked

  def save(self) -> tuple[dict[str, Tree], dict[str, list[int]]]:
    """Returns all values that are still referenced.

    Returns:
      By kind: trees of host arrays [values, ...], and the values' indices.
    """
    self.evaluate()
    kinds: dict[str, list[Value]] = {}
    for value in self._in_order():
      kinds.setdefault(value.kind, []).append(value)
    arrays = {
      kind: jax.tree.map(lambda *x: np.stack(x), *[v.tree for v in values])
      for kind, values in kinds.items()
    }
    indices = {k: [v.index for v in values] for k, values in kinds.items()}
    return arrays, indices

  def restore(
    self, arrays: Mapping[str, Tree], indices: Mapping[str, Sequence[int]]
  ) -> None:
    """Sets what `save` returned; later values are computed again."""
    for kind, saved in indices.items():
      for row, index in enumerate(saved):
        if index in self._live:
          tree = jax.tree.map(lambda x, row=row: x[row], arrays[kind])
          self._live[index].fulfil(tree)
    self.computes = True

  def _in_order(self) -> list[Value]:
    return [self._live[index] for index in sorted(self._live)]
