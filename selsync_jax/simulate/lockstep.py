"""Lockstep methods on the virtual clock.

Workers that take the same steps train as on real devices; only the time is
virtual. Each worker's clock advances by the time of its computation. A
collective is a barrier: it begins when the slowest worker is ready, and all
workers leave it together. A step without a collective has no barrier: between
two averages, a worker that is late at one step can catch up at the next. A late
collective, such as a vote with `vote_delay=1` or a delayed average, begins when
the slowest worker is ready, and the others wait for it only at the end of the
step that needs it. Late averages travel one after another.

Workers that look `ahead` take the next step during a vote, where that is faster
(see `islands.ahead`). The answer is needed before the next vote. If there is an
average, the next step is thrown away when it is complete.
"""

from collections.abc import Iterable, Mapping
import functools
import math
from typing import Any

import numpy as np

from selsync_jax.runs.ledger import Ledger, Totals
from selsync_jax.simulate.cluster import create_cluster, VirtualCluster
from selsync_jax.simulate.ledgers import VirtualLedger
from selsync_jax.simulate.simulation import Span
from selsync_jax.sync.network import pays_to_guess
from selsync_jax.sync.traffic import Collective
from selsync_jax.training.setup import Setup

_ROUNDING = 1e-9  # 49 x (1 / 49) is less than 1.


def create_ledger(
  setup: Setup, totals: Totals, *, cluster: Mapping[str, Any]
) -> Ledger:
  """Returns the ledger of a run in lockstep on the cluster of a config."""
  problem, shapes = setup.problem, setup.shapes
  workers = setup.mapper.workers
  sends = setup.strategy.sends_by_part(shapes.shared, workers, shapes.moments)
  votes = ()
  if not setup.strategy.trigger.traits.sees_update:  # It votes on numbers.
    votes = sends.pop('trigger')
  collectives = sum(sends.values(), ())
  if injected := problem.data.injected_bytes_per_step:
    collectives += (Collective('exchange', injected, 'step'),)
  made = create_cluster(
    cluster, workers=workers, steps=problem.steps, seed=problem.seed
  )
  kind = functools.partial(
    LockstepLedger, cluster=made, collectives=collectives, votes=votes
  )
  return setup.ledger(totals, kind)


class LockstepLedger(VirtualLedger):
  """A ledger of workers that take the same steps.

  It knows the collectives of a step and of a synchronization, and the votes
  before them. `Totals.clock` also keeps when each worker was `ready` with its
  last step. For each late collective in flight, its `late` has the step that
  needs it (`None` is the next synchronization) and the arrival time.
  """

  def __init__(
    self,
    *arguments: Any,
    cluster: VirtualCluster,
    collectives: Iterable[Collective],
    votes: Iterable[Collective] = (),
    **options: Any,
  ):
    super().__init__(*arguments, **options)
    self._cluster, self._collectives = cluster, tuple(collectives)
    self._votes = tuple(votes)

  @property
  def files(self) -> dict[str, Any]:
    return self._cluster.files

  def count(self, metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    columns = super().count(metrics)
    totals, workers = self.totals, self._cluster.network.workers
    version = totals.sync_steps - columns['synced']
    ready = totals.clock.get('ready', [0.0])
    if len(ready) != workers:  # After a resize, which drops delayed averages.
      ready = [max(ready)] * workers
      flights = totals.clock.get('late', [])
      totals.clock['late'] = [[due, at] for due, at in flights if due is None]
    step = totals.steps - 1
    took = [self._cluster.seconds(i, step) for i in range(workers)]
    computed = [t + seconds for t, seconds in zip(ready, took, strict=True)]
    synced = columns['synced']
    votes = self._issued(self._votes, synced, metrics)
    issued = self._issued(self._collectives, synced, metrics)
    ahead = self._ahead(votes, max(took))
    issued = [*(c for c in votes if c not in ahead), *issued]
    late = [c for c in issued if c.late]
    issued = [c for c in issued if not c.late]
    network, arrived = self._cluster.network, self._arrived(synced)
    # A synchronization is a barrier even if no collective is issued at it.
    averages = any(c.at == 'sync' and not c.late for c in self._collectives)
    meet = issued or (synced and (averages or ahead))
    began = [max(arrived, t) for t in computed]
    if meet:
      began = [max(began)] * workers
    repeated = 0.0
    if ahead and synced:  # The step that is thrown away lasts as long as this.
      thrown = max(t + own for t, own in zip(computed, took, strict=True))
      answered = max(began) + sum(map(network.seconds, ahead))
      repeated = max(answered, thrown) - max(began)
    else:
      self._send([c._replace(late=1) for c in ahead], max(began), 0.0)
    lasted = repeated + sum(map(network.seconds, issued))
    ended = [barrier + lasted for barrier in began]
    self._send(late, max(computed), max(ended))
    totals.clock['ready'] = ended
    times = zip(ready, computed, began, ended, strict=True)
    kinds = 'compute', 'wait', 'communicate'  # In the order of a step.
    spans = [
      Span(worker, kind, start, end, version)
      for worker, own in enumerate(times)
      for kind, start, end in zip(kinds, own, own[1:], strict=False)
      if end > start
    ]
    return columns | self.tick(
      max(ended), [0] * workers, [version] * workers, spans
    )

  def _ahead(
    self, votes: Iterable[Collective], step: float
  ) -> list[Collective]:
    """Returns the votes that workers do not wait for in a step of seconds."""
    found = [c for c in votes if not c.late]
    trip = sum(map(self._cluster.network.seconds, found))
    wrong = self.totals.sync_steps / self.totals.steps
    guesses = self._cluster.ahead and pays_to_guess(wrong, step, trip)
    return found if guesses else []

  def _arrived(self, synced: bool) -> float:
    """Returns when everything that this step needs has arrived."""
    clock, step = self.totals.clock, self.totals.steps
    flights = clock.get('late', [])
    needed = [due == step or (due is None and synced) for due, _ in flights]
    pairs = list(zip(flights, needed, strict=True))
    clock['late'] = [flight for flight, now in pairs if not now]
    return max((at for (_, at), now in pairs if now), default=0.0)

  def _send(
    self, late: Iterable[Collective], voted: float, ended: float
  ) -> None:
    """Sends late votes when all have voted, and late averages at the end."""
    clock, seconds = self.totals.clock, self._cluster.network.seconds
    link = clock.get('link', 0.0)  # When the last late average has arrived.
    for collective in late:
      if collective.at == 'sync':
        link = arrives = max(link, ended) + seconds(collective)
      else:
        arrives = voted + seconds(collective)
      due = None
      if collective.late < math.inf:
        due = self.totals.steps + collective.late
      clock['late'].append([due, arrives])
    clock['link'] = link

  def _issued(
    self,
    collectives: Iterable[Collective],
    synced: bool,
    metrics: Mapping[str, np.ndarray],
  ) -> list[Collective]:
    """Returns the step's collectives; `rate` says how often each is issued.

    A `scale` says so itself: where it is 0, there is nothing to send. If late
    collectives take turns, each is issued in part: they are no barrier.
    """
    issued = []
    for collective in collectives:
      at_step, rate = collective.at == 'step', collective.rate
      count = self.totals.steps if at_step else self.totals.sync_steps
      before, after = (
        math.floor(n * rate + _ROUNDING) for n in (count - 1, count)
      )
      times = rate if collective.late and not at_step else after - before
      length = 1.0
      if collective.scale:
        times, length = 1, rate * float(metrics[collective.scale][0])
      if times and length and (at_step or synced):
        nbytes = collective.nbytes * length
        issued.append(collective._replace(rate=times, nbytes=nbytes))
    return issued
