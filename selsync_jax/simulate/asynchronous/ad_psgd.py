"""AD-PSGD: average with one random neighbor, then apply the gradient.

The average travels while the gradient is computed, in a separate thread as in
the paper. An active worker has passive neighbors only. Active workers ask, and
passive workers answer even while they compute. So a waiting worker never blocks
another worker, and there is no deadlock.

References:
  Lian et al., `Asynchronous Decentralized Parallel Stochastic Gradient
  Descent`, ICML 2018, Algorithm 1; active and passive workers as in the code of
  Assran et al., `Stochastic Gradient Push`, ICML 2019.
"""

from collections.abc import Callable
from typing import Literal

import simpy

from selsync_jax.simulate.meeting import average
from selsync_jax.simulate.simulation import Model, Models, Simulation

_NEIGHBOR = 3  # Separates these draws from other methods'.


# By name, a function from an active worker and N to its passive neighbors.
TOPOLOGIES: dict[str, Callable[[int, int], list[int]]] = {
  'ring': lambda i, workers: sorted({(i - 1) % workers, (i + 1) % workers}),
  'complete': lambda i, workers: list(range(1, workers, 2)),
}


def ad_psgd(
  sim: Simulation, *, topology: Literal['ring', 'complete'] = 'ring'
) -> Models:
  """Averages an active worker with a passive neighbor during each gradient.

  Workers with even indices are active.

  Args:
    topology: the neighbors: in `ring` the two next to the worker, in `complete`
      every passive worker.
  """
  neighbors = TOPOLOGIES[topology]

  if sim.workers % 2:
    raise ValueError(
      f'ad_psgd needs an even number of workers, got {sim.workers}'
    )
  models = [Model(sim.algebra.initial(), 0)] * sim.workers
  locks = [simpy.Resource(sim.env) for _ in models]

  def exchange(i, step):
    others = neighbors(i, sim.workers)
    j = others[sim.draws(_NEIGHBOR, step)[i] % len(others)]
    with locks[j].request() as turn:
      yield turn
      yield sim.env.timeout(sim.seconds_of('exchange', 2))
      average(sim, models, (i, j))
      for k in (i, j):
        models[k] = models[k]._replace(version=models[k].version + 1)

  def worker(i):
    is_active = i % 2 == 0
    while True:
      averaged = None
      if is_active:
        averaged = sim.env.process(exchange(i, sim.steps[i]))
      gradient = yield from sim.compute(i, models[i])
      if averaged:
        yield from sim.hold(i, averaged, 'communicate')
      with locks[i].request() as turn:
        yield from sim.hold(i, turn)
        x, version = models[i]
        x = sim.algebra.update(x, gradient.value, sim.step)
        sim.use(gradient, version)
        x = sim.algebra.with_statistics(x, [gradient.value])
        models[i] = Model(x, version + 1)

  sim.start(worker)
  return lambda: models
