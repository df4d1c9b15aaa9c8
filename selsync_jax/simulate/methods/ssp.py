"""SSP, stale synchronous parallel: no worker is far ahead of the slowest.

References:
  Ho et al., `More Effective Distributed ML via a Stale Synchronous Parallel
  Parameter Server`, NIPS 2013.
"""

from selsync_jax.config import Index
from selsync_jax.simulate.methods.server import Server
from selsync_jax.simulate.methods.server import train_with
from selsync_jax.simulate.simulation import Method
from selsync_jax.simulate.simulation import Models
from selsync_jax.simulate.simulation import Simulation


def ssp(*, staleness: Index = 3) -> Method:
  """Bounds a worker's lead over the slowest when it begins a step.

  Args:
    staleness: s, the bound in steps; 0 is BSP by a parameter server. Tyagi and
      Swany use 100 and 200, Zhao et al. (DSSP) 3 to 15.
  """

  def start(sim: Simulation) -> Models:
    server = Server(sim)

    def allow(p):
      yield from sim.wait_until(
        p, lambda: server.lead(p) <= staleness, server.progress
      )

    return train_with(sim, server, allow)

  return start
