"""The operations of methods on models and gradients.

A method's processes call these at the virtual time of the operation;
`values.py` computes the arrays later, with the functions of `numerics.py`.
"""

from collections.abc import Sequence
from typing import Any

from selsync_jax.simulate import numerics
from selsync_jax.simulate.numerics import Numerics
from selsync_jax.simulate.values import Tree
from selsync_jax.simulate.values import Value
from selsync_jax.simulate.values import Values


class Algebra:
  """Operations on values, whose kinds are those of `Numerics.shapes`.

  Args:
    values: the simulation's values.
    compute: what computes the arrays; `None` if only the clock runs.
  """

  def __init__(self, values: Values, compute: Numerics | None = None):
    self._values, self._compute = values, compute

  @property
  def numerics(self) -> Numerics:
    """What computes the arrays."""
    assert self._compute is not None, 'only the clock runs'
    return self._compute

  def initial(self) -> Value:
    """Returns the `model` that all workers start with."""
    return self._values.create('model', lambda: self.numerics.initial())

  def gradient(self, model: Value, worker: int, step: int) -> Value:
    """Returns the `gradient` at a model, on the worker's batch at its step."""
    return self._values.create('gradient', None, model, worker, step)

  def metrics(self, gradient: Value) -> Value:
    """Returns the `metrics` of a gradient's batch."""
    return self._values.create('metrics', lambda g: g['metrics'], gradient)

  def sum(self, gradients: Sequence[Value], scale: float = 1.0) -> Value:
    """Returns the `sum` of gradients and sums, times `scale`."""
    return self._values.create(
      'sum',
      lambda *trees: numerics.combine([_grads(t) for t in trees], scale),
      *gradients,
    )

  def update(
    self, model: Value, total: Value, step: int, scale: float = 1.0
  ) -> Value:
    """Returns the `model` after an optimizer step.

    Args:
      model: the model before it.
      total: a gradient or a sum.
      step: the step in the learning rate's schedule.
      scale: a factor for the learning rate.
    """
    return self._values.create('model', self._update, model, total, step, scale)

  def _update(self, model: Tree, total: Tree, step: int, scale: float) -> Tree:
    rate = self.numerics.rate(step) * scale
    return self.numerics.update(model, _grads(total), rate)

  def with_statistics(self, model: Value, gradients: Sequence[Value]) -> Value:
    """Returns the `model` with the mean batch statistics of gradients."""
    return self._values.create('model', _with_statistics, model, *gradients)

  def mean(self, models: Sequence[Value]) -> Value:
    """Returns the mean parameters and batch statistics, of kind `shared`."""
    return self._values.create(
      'shared', lambda *m: numerics.mean([_shared(x) for x in m]), *models
    )

  def with_shared(self, model: Value, shared: Value) -> Value:
    """Returns the `model` with the parameters and statistics of `shared`."""
    return self._values.create('model', lambda m, s: m | s, model, shared)


def _grads(tree: Any) -> Tree:
  """Returns the summable part of a `gradient` or a `sum`."""
  return tree['grads'] if 'metrics' in tree else tree


def _with_statistics(model: Tree, *gradients: Tree) -> Tree:
  states = [gradient['model_state'] for gradient in gradients]
  return model | {'model_state': numerics.mean(states)}


def _shared(tree: Any) -> Tree:
  return {name: tree[name] for name in ('params', 'model_state')}
