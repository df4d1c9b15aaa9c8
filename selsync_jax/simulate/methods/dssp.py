"""DSSP, dynamic stale synchronous parallel: SSP with a bound that moves.

A worker that has reached the lower bound may be granted more steps: the number
with the shortest predicted wait for the slowest worker, by the last two pushes
of both.

As printed, the fastest worker is granted more steps each time it reaches its
bound, so its lead is not bounded by `s_low + r_max`. The text promises that
bound; `strict` keeps it.

References:
  Zhao et al., `Dynamic Stale Synchronous Parallel Distributed Training for Deep
  Learning`, ICDCS 2019, Algorithms 1 and 2. As printed, line 17 (wait) also
  follows line 14 (OK), which must be a misprint; ours returns there. There is
  no official code.
"""

from selsync_jax.config import Index
from selsync_jax.simulate.methods.server import Server
from selsync_jax.simulate.methods.server import train_with
from selsync_jax.simulate.simulation import Method
from selsync_jax.simulate.simulation import Models
from selsync_jax.simulate.simulation import Simulation

Pushes = tuple[float, float]
"""The arrival times of a worker's last push and of the one before it, in
seconds; 0 if there was none."""


def controller(fastest: Pushes, slowest: Pushes, r_max: int) -> int:
  """Returns how many steps beyond its bound the fastest worker may take (r*).

  It predicts the next pushes of both, and chooses the number of steps after
  which the fastest arrives closest to a push of the slowest.

  Args:
    fastest: the pushes of the worker at its bound.
    slowest: the pushes of the worker that it would wait for.
    r_max: the largest result.
  """
  interval = fastest[0] - fastest[1], slowest[0] - slowest[1]
  steps = range(r_max + 1)

  def shortest_wait(r):
    own = fastest[0] + r * interval[0]
    return min(abs(slowest[0] + (k + 1) * interval[1] - own) for k in steps)

  return min(steps, key=shortest_wait)


def dssp(*, s_low: Index = 3, r_max: Index = 12, strict: bool = True) -> Method:
  """Bounds leads as SSP does, by a bound between `s_low` and `s_low + r_max`.

  Args:
    s_low: s_L, the lower bound on a worker's lead over the slowest, in steps;
      3 is the paper's.
    r_max: largest number of steps that the controller grants; 12 is the
      paper's.
    strict: whether a grant ends at a lead of `s_low + r_max`, as the text says;
      not strict is Algorithm 1 as printed.
  """

  def start(sim: Simulation) -> Models:
    server = Server(sim)
    extra = [0] * sim.workers  # r, the granted steps that are left.

    def grant(p):
      slowest = server.clocks.index(min(server.clocks))
      r = controller(server.pushes[p], server.pushes[slowest], r_max)
      return min(r, s_low + r_max - server.lead(p)) if strict else r

    def allow(p):
      if extra[p] > 0:
        extra[p] -= 1
        return
      if server.lead(p) > s_low and server.clocks[p] == max(server.clocks):
        extra[p] = max(0, grant(p))
        if extra[p] > 0:
          return
      yield from sim.wait_until(
        p, lambda: server.lead(p) <= s_low, server.progress
      )

    return train_with(sim, server, allow)

  return start
