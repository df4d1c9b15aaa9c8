"""The equations of a program that JAX has traced, evaluated one by one."""

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend import core

Env = dict[Any, Any]
"""The values of variables."""


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
