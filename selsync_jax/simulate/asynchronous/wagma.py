"""WAGMA-SGD: wait-avoiding model averaging in groups that change.

After its local update a worker averages its model with a group. The first
member to arrive begins the average, with the newest models of the others. A
later member adds its own model to the group's sum. The groups of step t form a
butterfly, so that every model reaches all workers after a few steps. At every
`tau`-th step all workers wait for each other and average.

Where the paper says nothing: each group is begun by the first of its
members, and a worker uses a sum once, even if it takes several steps before the
next sum.

References:
  Li et al., `Breaking (Global) Barriers in Parallel Stochastic Optimization
  with Wait-Avoiding Group Averaging`, TPDS 2021, Algorithm 2.
"""

from selsync_jax.config import Count
from selsync_jax.simulate.algebra import Value
from selsync_jax.simulate.meeting import shared_by, synchronizations
from selsync_jax.simulate.simulation import (
  Model,
  Models,
  Process,
  Settled,
  Signal,
  Simulation,
)
from selsync_jax.sync.exchange import butterfly_masks


def butterfly(worker: int, step: int, workers: int, size: int) -> list[int]:
  """Returns the indices of a worker's group at step t.

  The number of workers P and the size of a group S are powers of two.
  """
  group = {worker}
  for mask in butterfly_masks(step, workers, size):
    group |= {i ^ mask for i in group}
  return sorted(group)


class GroupAverage:
  """The wait-avoiding group all-reduces of all steps, in groups of `size`.

  Every worker has the model `initial` before its first step.
  """

  def __init__(self, sim: Simulation, size: int, initial: Value):
    self._sim, self._size = sim, size
    self._send = [initial] * sim.workers  # By worker, its newest model,
    self._joined = [-1] * sim.workers  # and the step of that model.
    # By worker, the newest summands, and the step if its own model is one.
    self._received: list[tuple[list[Value], int | None]] = [
      ([], None) for _ in range(sim.workers)
    ]
    self._rounds = shared_by(size, self._begin)  # By step and first member.
    self._changed = Signal(sim.env)

  def join(self, worker: int, step: int, model: Value) -> Process:
    """Averages a worker's model; returns the mean, of kind `shared`."""
    sim = self._sim
    self._send[worker], self._joined[worker] = model, step
    group = butterfly(worker, step, sim.workers, self._size)
    state = self._rounds((step, group[0]))
    yield from sim.wait_until(worker, lambda: 'begun' in state, self._changed)
    yield from sim.wait_until(
      worker, lambda: 'done' in state, self._changed, 'communicate'
    )
    summands, own = self._received[worker]
    self._received[worker] = [], None
    return sim.algebra.mean(summands if own == step else [*summands, model])

  def _begin(self, key: tuple[int, int]) -> set[str]:
    """Begins a round; returns its state, which is empty so far."""
    state: set[str] = set()
    self._sim.env.process(self._reduce(*key, state))
    return state

  def _reduce(self, step: int, first: int, state: set[str]) -> Process:
    sim = self._sim
    group = butterfly(first, step, sim.workers, self._size)
    yield Settled(sim.env)  # Workers that come at this instant take part.
    summands = [self._send[i] for i in group]
    fresh = [i for i in group if self._joined[i] == step]
    state.add('begun')
    self._changed.fire()
    yield sim.env.timeout(sim.seconds_of('all_reduce', len(group)))
    for i in group:
      self._received[i] = summands, step if i in fresh else None
    state.add('done')
    self._changed.fire()


def wagma(
  sim: Simulation, *, group: int | None = None, tau: Count = 10
) -> Models:
  """Averages models in a group at each step, in all workers every `tau` steps.

  Args:
    group: S, the size of a group, a power of two; `None` is a power of two near
      the square root of the number of workers, as in the paper.
    tau: steps from one average over all workers to the next; the paper's is 10.
  """
  workers = sim.workers
  if workers & (workers - 1):
    raise ValueError(f'wagma needs a power of two of workers, got {workers}')
  size = 1 << workers.bit_length() // 2 if group is None else group
  if size < 1 or size & (size - 1) or size > workers:
    raise ValueError(
      f'group={group}: must be a power of two, at most {workers} (workers)'
    )
  models = [Model(sim.algebra.initial(), 0)] * workers
  groups = GroupAverage(sim, size, models[0].value)
  synchronization = synchronizations(sim, models)

  def worker(i):
    while True:
      t = sim.steps[i]
      gradient, (value, _) = yield from sim.local_step(i, models[i])
      if (t + 1) % tau:
        shared = yield from groups.join(i, t, value)
        models[i] = Model(sim.algebra.with_shared(value, shared), t + 1)
      else:
        models[i] = Model(value, t + 1)
        yield from synchronization(t).attend(i)
      sim.use(gradient, t)

  sim.start(worker)
  return lambda: models
