"""The registry of asynchronous methods.

A method is one file: a constructor whose keyword defaults are its fields, as in
`selsync_jax.methods`. It returns a function that starts the method's processes,
which read like the paper's pseudo-code.
"""

from collections.abc import Callable
import inspect
from typing import Any

from selsync_jax import config
from selsync_jax.config import lookup
from selsync_jax.simulate.methods.ad_psgd import ad_psgd
from selsync_jax.simulate.methods.asp import asp
from selsync_jax.simulate.methods.dssp import dssp
from selsync_jax.simulate.methods.eager import eager
from selsync_jax.simulate.methods.prague import prague
from selsync_jax.simulate.methods.rna import rna
from selsync_jax.simulate.methods.ssp import ssp
from selsync_jax.simulate.methods.wagma import wagma
from selsync_jax.simulate.simulation import Method

METHODS: dict[str, Callable[..., Method]] = {
  'asp': asp,
  'ssp': ssp,
  'dssp': dssp,
  'eager': eager,
  'wagma': wagma,
  'ad_psgd': ad_psgd,
  'prague': prague,
  'rna': rna,
}


def parameters(method: str) -> dict[str, inspect.Parameter]:
  """Returns the fields of a method, as its constructor declares them.

  Raises:
    ValueError: if there is no such method.
  """
  return config.parameters(lookup(METHODS, method))


def create_method(method: str, **fields: Any) -> Method:
  """Makes the method of a config's `sync`.

  Args:
    method: a name in `METHODS`.
    **fields: the method's own fields; fields of other methods must be `None`.

  Raises:
    ConfigError: if the method is unknown, a field is not its own, or a value
      breaks the rule of its field.
  """
  return config.bind(
    METHODS, {'method': method, **fields}, 'sync', key='method'
  )()
