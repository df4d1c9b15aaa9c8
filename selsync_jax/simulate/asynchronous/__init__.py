"""The registry of asynchronous methods.

A method is a function of a `Simulation` whose keyword arguments are its fields,
as in `selsync_jax.methods`. It starts the method's processes, which read like
the paper's pseudo-code.
"""

from collections.abc import Callable
from typing import Any

from selsync_jax import config
from selsync_jax.simulate.asynchronous import partial, server
from selsync_jax.simulate.asynchronous.ad_psgd import ad_psgd
from selsync_jax.simulate.asynchronous.async_diloco import async_diloco
from selsync_jax.simulate.asynchronous.decoupled import decoupled_diloco
from selsync_jax.simulate.asynchronous.prague import prague
from selsync_jax.simulate.asynchronous.timed import a_edit
from selsync_jax.simulate.asynchronous.wagma import wagma
from selsync_jax.simulate.simulation import Asynchronous, Models

ASYNCHRONOUS: dict[str, Callable[..., Models]] = {
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


def create_method(method: str, **fields: Any) -> Asynchronous:
  """Binds the method's fields in a config's `sync`; others must be `None`."""
  given = {'method': method, **fields}
  return config.bind(ASYNCHRONOUS, given, 'sync', key='method')
