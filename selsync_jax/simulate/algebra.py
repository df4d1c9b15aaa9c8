"""Models and gradients that are computed when they are needed, or never.

Virtual time does not depend on arrays. So the processes of a simulation pass
promises around: a `Value` is a function and its inputs. All values are computed
together later, with the functions of `numerics.py`, and gradients in batches. A
replay before a resume, and a simulation that is run for its times alone,
compute none.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any
import weakref

import jax
import numpy as np

from selsync_jax.devices.mappers import abstract
from selsync_jax.simulate import numerics
from selsync_jax.simulate.numerics import Numerics, Tree


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class Value:
  """A tree of arrays, `function(*inputs)`, that may not be computed yet."""

  index: int  # In the order of creation.
  kind: str  # The name of the tree's shapes, see `Numerics.shapes`.
  function: Callable[..., Tree] | None  # A gradient has none.
  inputs: tuple[Any, ...]  # Values, passed as arrays, or anything else.
  tree: Tree = None  # The arrays, once they are computed.

  def fulfil(self, tree: Tree) -> None:
    """Sets the arrays, and drops the function and its inputs."""
    self.tree, self.function, self.inputs = tree, None, ()


class Algebra:
  """The values of a simulation, and operations on them.

  A method's processes call an operation at its virtual time. `Numerics.shapes`
  has the kinds of values. Only values that are still referenced are computed;
  without `compute`, none is.
  """

  def __init__(self, compute: Numerics | None = None):
    self._compute: Any = compute
    self.computes = compute is not None
    self._count = 0
    # By index, and so in the order of creation.
    self._live: weakref.WeakValueDictionary[int, Value] = (
      weakref.WeakValueDictionary()
    )

  def initial(self) -> Value:
    """Returns the `model` that all workers start with."""
    return self._create('model', lambda: self._compute.initial())

  def gradient(self, model: Value, worker: int, step: int) -> Value:
    """Returns the `gradient` at a model, on the worker's batch at its step."""
    return self._create('gradient', None, model, worker, step)

  def metrics(self, gradient: Value) -> Value:
    """Returns the `metrics` of a gradient's batch."""
    return self._create('metrics', lambda g: g['metrics'], gradient)

  def sum(self, gradients: Sequence[Value], scale: float = 1.0) -> Value:
    """Returns the `sum` of gradients and sums, times `scale`."""

    def add(*trees):
      return numerics.combine([_grads(tree) for tree in trees], scale)

    return self._create('sum', add, *gradients)

  def update(
    self, model: Value, total: Value, step: int, scale: float = 1.0
  ) -> Value:
    """Returns the `model` after an optimizer step with a gradient or a sum.

    The learning rate is the schedule's at `step`, times `scale`.
    """

    def move(model, total):
      rate = self._compute.rate(step) * scale
      return self._compute.update(model, _grads(total), rate)

    return self._create('model', move, model, total)

  def with_statistics(self, model: Value, gradients: Sequence[Value]) -> Value:
    """Returns the `model` with the mean batch statistics of gradients."""

    def replace(model, *trees):
      states = [tree['model_state'] for tree in trees]
      return model | {'model_state': numerics.mean(states)}

    return self._create('model', replace, model, *gradients)

  def mean(self, models: Sequence[Value]) -> Value:
    """Returns the mean parameters and batch statistics, of kind `shared`."""
    return self._create(
      'shared',
      lambda *trees: numerics.mean([numerics.shared(tree) for tree in trees]),
      *models,
    )

  def linear(self, weights: Sequence[float], models: Sequence[Value]) -> Value:
    """Returns the weighted sum of parameters, of kind `shared`.

    Batch statistics are the last model's: a variance must not be extrapolated.
    """

    def add(*trees):
      pairs = zip(trees, weights, strict=True)
      terms = [numerics.combine([tree['params']], w) for tree, w in pairs]
      return {
        'params': numerics.combine(terms, 1.0),
        'model_state': trees[-1]['model_state'],
      }

    return self._create('shared', add, *models)

  def with_shared(self, model: Value, shared: Value) -> Value:
    """Returns the `model` with the parameters and statistics of `shared`."""
    return self._create('model', lambda m, s: m | s, model, shared)

  def _create(
    self, kind: str, function: Callable[..., Tree] | None, *inputs: Any
  ) -> Value:
    if not self.computes:  # Do not keep the inputs alive.
      function, inputs = None, ()
    value = Value(self._count, kind, function, inputs)
    self._live[self._count] = value
    self._count += 1
    return value

  def evaluate(self) -> None:
    """Computes every value that is still referenced."""
    waiting = [v for v in self._live.values() if v.tree is None]
    while waiting and self.computes:
      blocked, gradients, rows = [], [], []
      for value in waiting:
        arguments = [
          x.tree if isinstance(x, Value) else x for x in value.inputs
        ]
        if any(argument is None for argument in arguments):
          blocked.append(value)
        elif value.function is not None:
          value.fulfil(value.function(*arguments))
        else:
          gradients.append(value)
          rows.append(arguments)
      trees = self._compute.gradients(rows)
      for value, tree in zip(gradients, trees, strict=True):
        value.fulfil(tree)
      waiting = blocked

  def save(self) -> tuple[dict[str, Tree], dict[str, list[int]]]:
    """Returns all values that are still referenced.

    They are trees of host arrays [values, ...] and the indices, by kind.
    """
    self.evaluate()
    kinds: dict[str, list[Value]] = {}
    for value in self._live.values():
      kinds.setdefault(value.kind, []).append(value)
    arrays = {
      kind: jax.tree.map(lambda *x: np.stack(x), *[v.tree for v in values])
      for kind, values in kinds.items()
    }
    return arrays, {k: [v.index for v in values] for k, values in kinds.items()}

  def like(self, indices: Mapping[str, Sequence[int]]) -> dict[str, Tree]:
    """Returns the shapes of the arrays that were saved with the indices."""
    return {
      kind: abstract(self._compute.shapes[kind], len(saved))
      for kind, saved in indices.items()
    }

  def restore(
    self, arrays: Mapping[str, Tree], indices: Mapping[str, Sequence[int]]
  ) -> None:
    """Sets the values from `save`; later values are computed again."""
    for kind, saved in indices.items():
      for row, index in enumerate(saved):
        if index in self._live:
          tree = jax.tree.map(lambda x, row=row: x[row], arrays[kind])
          self._live[index].fulfil(tree)
    self.computes = True


class OuterStep:
  """DiLoCo's outer optimizer on parameters of kind `shared`.

  It is `optax.sgd` with Nesterov momentum. Its momentum is a value like the
  parameters, so that a checkpoint holds both.
  """

  def __init__(self, algebra: Algebra, rate: float, momentum: float):
    self._algebra, self._rate, self._decay = algebra, rate, momentum
    self._momentum: list[Value] = []  # Empty before the first step.

  def __call__(self, value: Value, gradient: Value) -> Value:
    """Returns the parameters after a step."""
    linear = self._algebra.linear
    weights = [self._decay, 1.0][-1 - len(self._momentum) :]
    self._momentum = [linear(weights, [*self._momentum, gradient])]
    weights = [1.0, -self._rate * self._decay, -self._rate]
    return linear(weights, [value, *self._momentum, gradient])


def _grads(tree: Any) -> Tree:
  """Returns the summable part of a `gradient` or a `sum`."""
  return tree['grads'] if 'metrics' in tree else tree
