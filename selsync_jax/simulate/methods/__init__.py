"""The registry of asynchronous methods.

A method is a function of a `Simulation` whose keyword arguments are its fields,
as in `selsync_jax.methods`. It starts the method's processes, which read like
the paper's pseudo-code.
"""

from collections.abc import Callable
from typing import Any

from selsync_jax import config
from selsync_jax.simulate.methods import partial
from selsync_jax.simulate.methods import server
from selsync_jax.simulate.methods.ad_psgd import ad_psgd
from selsync_jax.simulate.methods.async_diloco import async_diloco
from selsync_jax.simulate.methods.decoupled import decoupled_diloco
from selsync_jax.simulate.methods.prague import prague
from selsync_jax.simulate.methods.timed import a_edit
from selsync_jax.simulate.methods.wagma import wagma
from selsync_jax.simulate.simulation import Method
from selsync_jax.simulate.simulation import Models

METHODS: dict[str, Callable[..., Models]] = {
  'asp': server.asp,
  'ssp': server.ssp,
  'dssp': server.dssp,
  'eager': partial.eager,
  'wagma': wagma,
  'ad_psgd': ad_psgd,
  'prague': prague,
  'rna': partial.rna,
  'async_diloco': async_diloco,
  'decoupled_diloco': decoupled_diloco,
  'a_edit': a_edit,
}

WITHOUT_AVERAGES = 'asp', 'ssp', 'dssp', 'rna'
"""Methods that change a model only by updates of the optimizer."""


def create_method(method: str, **fields: Any) -> Method:
  """Binds the fields of a config's `sync`; those of others must be `None`."""
  given = {'method': method, **fields}
  return config.bind(METHODS, given, 'sync', key='method')
