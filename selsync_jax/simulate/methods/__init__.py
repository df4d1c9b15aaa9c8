"""The registry of asynchronous methods.

A method is a constructor whose keyword defaults are its fields, as in
`selsync_jax.methods`. It returns a function that starts the method's processes,
which read like the paper's pseudo-code.
"""

from collections.abc import Callable
import inspect
from typing import Any

from selsync_jax import config
from selsync_jax.config import lookup
from selsync_jax.simulate.methods import partial
from selsync_jax.simulate.methods import server
from selsync_jax.simulate.methods.ad_psgd import ad_psgd
from selsync_jax.simulate.methods.prague import prague
from selsync_jax.simulate.methods.wagma import wagma
from selsync_jax.simulate.simulation import Method

METHODS: dict[str, Callable[..., Method]] = {
  'asp': server.asp,
  'ssp': server.ssp,
  'dssp': server.dssp,
  'eager': partial.eager,
  'wagma': wagma,
  'ad_psgd': ad_psgd,
  'prague': prague,
  'rna': partial.rna,
}


def parameters(method: str) -> dict[str, inspect.Parameter]:
  """Returns the fields of a method, as its constructor declares them.

  If there is no such method, that is a `ValueError`.
  """
  return config.parameters(lookup(METHODS, method))


def create_method(method: str, **fields: Any) -> Method:
  """Makes the method of a config's `sync`.

  Fields of other methods must be `None`. An unknown method or field, or a value
  that breaks the rule of its field, is a `ConfigError`.
  """
  given = {'method': method, **fields}
  return config.bind(METHODS, given, 'sync', key='method')()
