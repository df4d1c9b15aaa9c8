"""DiLoCo's outer optimizer, on models of a virtual cluster.

It is `optax.sgd` with Nesterov momentum, as operations on values. Its momentum
is a value like the parameters, so that a checkpoint holds both.
"""

from selsync_jax.simulate.algebra import Algebra, Value


class OuterStep:
  """Gradient descent with Nesterov momentum on parameters of kind `shared`."""

  def __init__(self, algebra: Algebra, rate: float, momentum: float):
    self._algebra, self._rate, self._decay = algebra, rate, momentum
    self._momentum: list[Value] = []  # None before the first step.

  def __call__(self, value: Value, gradient: Value) -> Value:
    """Returns the parameters after a step."""
    linear = self._algebra.linear
    weights = [self._decay, 1.0][-1 - len(self._momentum) :]
    self._momentum = [linear(weights, [*self._momentum, gradient])]
    weights = [1.0, -self._rate * self._decay, -self._rate]
    return linear(weights, [value, *self._momentum, gradient])
