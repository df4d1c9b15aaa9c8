"""ASP, asynchronous parallel training: no worker waits for another.

References:
  Dean et al., `Large Scale Distributed Deep Networks`, NIPS 2012 (Downpour SGD,
  with one step from one fetch to the next).
"""

from selsync_jax.simulate.methods.server import Server
from selsync_jax.simulate.methods.server import train_with
from selsync_jax.simulate.simulation import Method
from selsync_jax.simulate.simulation import Models
from selsync_jax.simulate.simulation import Simulation


def asp() -> Method:
  """Pushes gradients to a parameter server and pulls its model.

  A worker waits only for its turn on the server's link.
  """

  def start(sim: Simulation) -> Models:
    return train_with(sim, Server(sim))

  return start
