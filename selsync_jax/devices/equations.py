"""The equations of a program that JAX has traced, evaluated one by one."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax.extend import core
import numpy as np

Env = dict[Any, Any]
"""The values of variables."""

_UNUSED = {
  *('jvp_jaxpr_fun', 'fwd_jaxpr_thunk', 'bwd', 'rule', 'num_consts'),
  *('symbolic_zeros', 'in_tree', 'out_tree', 'out_trees'),
}
"""What a `custom_jvp_call` and the like have to be differentiated or mapped."""


def initial(closed: core.ClosedJaxpr, args: Sequence[Any]) -> Env:
  """Returns the values with which a traced program starts."""
  names = *closed.jaxpr.constvars, *closed.jaxpr.invars
  return dict(zip(names, (*closed.consts, *args), strict=True))


def read(atoms: Sequence[Any], env: Env) -> list[Any]:
  """Returns the values of variables and literals."""
  return [
    atom.val if isinstance(atom, core.Literal) else env[atom] for atom in atoms
  ]


def variables(atoms: Sequence[Any]) -> list[Any]:
  """Returns those that are no literals."""
  return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def evaluate(
  eqns: Sequence[core.JaxprEqn],
  env: Env,
  override: Callable[[Any, list[Any]], Any] = lambda eqn, values: None,
) -> None:
  """Evaluates equations in their order, and adds their results to `env`.

  `override(eqn, values)` returns the results of an equation, or `None` to
  evaluate it as JAX does.
  """
  for eqn in eqns:
    values = read(eqn.invars, env)
    results = override(eqn, values)
    if results is None:
      params = eqn.primitive.get_bind_params(eqn.params)
      results = eqn.primitive.bind(*values, **params)
      if not eqn.primitive.multiple_results:
        results = [results]
    env.update(zip(eqn.outvars, results, strict=True))


def structure(
  reads: Sequence[Any], makes: Sequence[Any], eqns: Sequence[core.JaxprEqn]
) -> Hashable:
  """Returns what is equal only for equations that compute the same.

  They may be of programs that were traced apart. What tells how to
  differentiate or map them does not count.

  Args:
    reads: the variables that they read, in the order of their values.
    makes: the variables and literals whose values are wanted, in order.
    eqns: the equations, in the order in which they are evaluated.
  """
  numbers: dict[Any, int] = {}

  def number(var):
    return numbers.setdefault(var, len(numbers)), var.aval

  def named(atom):
    if isinstance(atom, core.Literal):
      return _constant(atom.val), atom.aval
    return number(atom)

  return (
    tuple(map(number, reads)),
    tuple(
      (
        eqn.primitive,
        tuple(map(named, eqn.invars)),
        tuple(map(number, eqn.outvars)),
        tuple(
          (name, _parameter(value))
          for name, value in eqn.params.items()
          if name not in _UNUSED or not eqn.primitive.name.startswith('custom_')
        ),
        eqn.ctx,
      )
      for eqn in eqns
    ),
    tuple(map(named, makes)),
  )


def _constant(value: Any) -> Hashable:
  """Returns what is equal for equal constants, if they are on the host."""
  if isinstance(value, jax.Array):
    return _Same(value)
  array = np.asarray(value)  # For Python, one NaN is not another.
  if array.dtype.hasobject:
    return _Same(value)
  return array.dtype, array.shape, array.tobytes()


def _parameter(value: Any) -> Hashable:
  """Returns an equation's parameter, or what is equal only for equal ones."""
  if isinstance(value, core.ClosedJaxpr):
    constants = tuple(map(_constant, value.consts))
    return constants, _parameter(value.jaxpr)
  if isinstance(value, core.Jaxpr):
    reads = *value.constvars, *value.invars
    return structure(reads, value.outvars, value.eqns)
  if isinstance(value, tuple | list):
    return tuple(map(_parameter, value))
  if isinstance(value, float | np.generic | np.ndarray):
    return _constant(value)
  try:
    hash(value)
  except TypeError:
    return _Same(value)
  return value


class _Same:
  """Something that is equal only to itself, and lives as long as this."""

  def __init__(self, value: Any):
    self._value = value

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Same) and self._value is other._value

  def __hash__(self) -> int:
    return id(self._value)
