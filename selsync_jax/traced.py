"""Programs that JAX traces: their types, equations, and evaluation.

JAX may change the form of a traced program in any release, so no other file
knows that form. CI runs tests/traced_test.py with the oldest and newest JAX.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import batching, mlir
import numpy as np

Program = Any
"""A traced program. JAX 0.10 has two classes, for programs with and without
their constants; since 0.12 there is only one."""

Equation = Any
"""An equation of a program."""

Env = dict[Any, Any]
"""The values of variables."""

_UNUSED = {
  *('jvp_jaxpr_fun', 'fwd_jaxpr_thunk', 'bwd', 'rule', 'num_consts'),
  *('symbolic_zeros', 'in_tree', 'out_tree', 'out_trees'),
}
"""Parameters that matter only when a `custom_jvp_call` or a similar call is
differentiated or mapped."""


def is_program(value: Any) -> bool:
  """Whether a parameter of an equation is a program inside it."""
  return hasattr(value, 'eqns')


def constants(program: Program) -> Env:
  """Returns the values of the constants that a program holds."""
  return dict(zip(program.constvars, program.consts, strict=True))


def variables(atoms: Sequence[Any]) -> list[Any]:
  """Returns the atoms that are variables, not literals."""
  return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def read(
  atoms: Sequence[Any],
  env: Env,
  literal: Callable[[Any], Any] = lambda value: value,
) -> list[Any]:
  """Returns the values of variables, and `literal(value)` of literals."""
  return [
    literal(atom.val) if isinstance(atom, core.Literal) else env[atom]
    for atom in atoms
  ]


def name(eqn: Equation) -> str:
  """Returns the name of an equation's primitive.

  A collective whose result is equal on all workers has the same name as one
  whose result varies.
  """
  return eqn.primitive.name.removesuffix('_invariant')


def axes(eqn: Equation) -> tuple[Any, ...]:
  """Returns the names of the mapped axes that an equation refers to."""
  names = eqn.params.get('axes', eqn.params.get('axis_name', ()))
  return names if isinstance(names, tuple) else (names,)


def inside(eqn: Equation) -> Iterator[Program]:
  """Yields the programs among an equation's parameters."""
  for value in eqn.params.values():
    each = value if isinstance(value, tuple | list) else (value,)
    yield from filter(is_program, each)


def run(
  program: Program,
  args: Sequence[Any],
  override: Callable[[Any, list[Any]], Any] = lambda eqn, values: None,
) -> list[Any]:
  """Returns the results of a program; see `evaluate` for `override`."""
  env = constants(program) | dict(zip(program.invars, args, strict=True))
  evaluate(program.eqns, env, override)
  return read(program.outvars, env)


def evaluate(
  eqns: Sequence[Equation],
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


def varying(x: Any) -> frozenset[str]:
  """Returns the manual axes of the mesh over which a value may vary."""
  if not isinstance(x, jax.Array):
    return frozenset()
  return jax.typeof(x).manual_axis_type.varying


def typed_as_equal(x: Any) -> Any:
  """Returns a value typed as equal along all manual axes of the mesh.

  The caller must know that it is equal: nothing is sent or checked.
  """
  return _equal.bind(x)


_equal = core.Primitive('typed_as_equal')
_equal.def_impl(lambda x: x)
mlir.register_lowering(_equal, lambda context, x: [x])
batching.defvectorized(_equal)


@_equal.def_abstract_eval
def _(x):
  of_all = x.manual_axis_type.update(varying=frozenset())
  return x.update(manual_axis_type=of_all)


def structure(
  reads: Sequence[Any], makes: Sequence[Any], eqns: Sequence[Equation]
) -> Hashable:
  """Returns a key that is equal only for equations that compute the same.

  The equations may come from programs that were traced separately. Parameters
  for differentiation and mapping are ignored.

  Args:
    reads: the input variables, in order.
    makes: the variables and literals of the results, in order.
    eqns: the equations, in the order of evaluation.
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
  """Returns a key that is equal for equal constants on the host."""
  if isinstance(value, jax.Array):
    return _Same(value)
  array = np.asarray(value)  # In Python, NaN does not equal NaN.
  if array.dtype.hasobject:
    return _Same(value)
  return array.dtype, array.shape, array.tobytes()


def _parameter(value: Any) -> Hashable:
  """Returns an equation's parameter, or a key that compares it by value."""
  if is_program(value):
    held = tuple(map(_constant, getattr(value, 'consts', ())))
    reads = *value.constvars, *value.invars
    return held, structure(reads, value.outvars, value.eqns)
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
  """Compares a value by identity, and keeps it alive."""

  def __init__(self, value: Any):
    self._value = value

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Same) and self._value is other._value

  def __hash__(self) -> int:
    return id(self._value)
