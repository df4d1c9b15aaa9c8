"""SSP, stale synchronous parallel: nobody is too far ahead of the slowest.

References:
  Ho et al., `More Effective Distributed ML via a Stale Synchronous Parallel
  Parameter Server`, NIPS 2013.
"""

from selsync_jax.config import Index
from selsync_jax.simulate.method import Method
from selsync_jax.simulate.method import Models
from selsync_jax.simulate.methods.server import Server
from selsync_jax.simulate.methods.server import train_with
from selsync_jax.simulate.simulation import Simulation


def ssp(*, staleness: Index = 3) -> Method:
  """A worker begins a step if it is at most `staleness` ahead of the slowest.

  Args:
    staleness: s, in steps; 0 is BSP by a parameter server. Tyagi and Swany
      have 100 and 200, Zhao et al. (DSSP) 3 to 15.
  """

  def start(sim: Simulation) -> Models:
    server = Server(sim)

    def lead(p):
      return server.clocks[p] - min(server.clocks)

    def allow(p):
      yield from sim.wait_until(
        p, lambda: lead(p) <= staleness, server.progress
      )

    train_with(sim, server, allow)
    return lambda: [server.model]

  return start
