"""Lockstep methods on the virtual clock.

Workers that take the same steps train as on real devices; only the time is
virtual. Each worker's clock advances by the time of its computation. A
collective is a barrier: it begins when the slowest worker is ready, and all
workers leave it together. A step without a collective has no barrier: between
two averages, a worker that is late at one step can catch up at the next.
"""

from collections.abc import Iterable, Mapping
import functools
import math
from typing import Any

import numpy as np

from selsync_jax.runs.ledger import Ledger
from selsync_jax.runs.ledger import Totals
from selsync_jax.simulate.cluster import Cluster
from selsync_jax.simulate.cluster import create_cluster
from selsync_jax.simulate.ledgers import VirtualLedger
from selsync_jax.simulate.simulation import Span
from selsync_jax.sync.traffic import Collective
from selsync_jax.training.setup import Setup

_ROUNDING = 1e-9  # 49 x (1 / 49) is less than 1.


def create_ledger(
  setup: Setup, totals: Totals, *, cluster: Mapping[str, Any]
) -> Ledger:
  """Returns the ledger of a run in lockstep on a virtual cluster.

  Args:
    setup: the run.
    totals: the totals so far; the ledger updates them in place.
    cluster: the fields of `config.cluster`.

  Raises:
    ConfigError: for the first field whose value breaks its rule.
  """
  problem, shapes = setup.problem, setup.shapes
  workers = setup.plan.workers
  collectives = setup.strategy.sends(shapes.shared, workers, shapes.opt_state)
  if injected := problem.data.injected_bytes_per_step:
    collectives += (Collective('exchange', injected, 'step'),)
  kind = functools.partial(
    LockstepLedger,
    cluster=create_cluster(
      cluster, workers=workers, steps=problem.steps, seed=problem.seed
    ),
    collectives=collectives,
  )
  return setup.ledger(totals, kind)


class LockstepLedger(VirtualLedger):
  """A ledger of workers that take the same steps.

  `Totals.clock` also keeps when each worker was `ready` with its last step.

  Args:
    *arguments: the arguments of `Ledger`.
    cluster: the cluster.
    collectives: the collectives of a step and of a synchronization.
    **options: the keyword arguments of `Ledger`.
  """

  def __init__(
    self,
    *arguments: Any,
    cluster: Cluster,
    collectives: Iterable[Collective],
    **options: Any,
  ):
    super().__init__(*arguments, **options)
    self._cluster, self._collectives = cluster, tuple(collectives)

  @property
  def files(self) -> dict[str, Any]:
    """See `Ledger`."""
    return self._cluster.files

  def count(self, metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Counts the step, its traffic, and its virtual time."""
    columns = super().count(metrics)
    totals, workers = self.totals, self._cluster.network.workers
    version = totals.sync_steps - columns['synced']
    ready = totals.clock.get('ready', [0.0])
    if len(ready) != workers:  # After a resize.
      ready = [max(ready)] * workers
    computed = [
      began + self._cluster.seconds(worker, totals.steps - 1)
      for worker, began in enumerate(ready)
    ]
    issued = self._issued(columns['synced'])
    # A synchronization is a barrier even if no collective is issued at it.
    averages = any(c.at == 'sync' for c in self._collectives)
    meet = issued or (columns['synced'] and averages)
    began = [max(computed)] * workers if meet else computed
    seconds = sum(map(self._cluster.network.seconds, issued))
    ended = [barrier + seconds for barrier in began]
    totals.clock['ready'] = ended
    spans = [
      Span(worker, kind, start, end, version)
      for worker, times in enumerate(
        zip(ready, computed, began, ended, strict=True)
      )
      for kind, start, end in zip(_KINDS, times, times[1:], strict=False)
      if end > start
    ]
    return columns | self.tick(
      max(ended), [0] * workers, [version] * workers, spans
    )

  def _issued(self, synced: bool) -> list[Collective]:
    """Returns the step's collectives; `rate` says how often each is issued."""
    totals = self.totals
    count = {'step': totals.steps, 'sync': totals.sync_steps if synced else 0}
    return [
      collective._replace(rate=times)
      for collective in self._collectives
      if (times := _times(count[collective.at], collective.rate))
    ]


_KINDS = ('compute', 'wait', 'communicate')  # In the order of a step.


def _times(count: int, rate: float) -> int:
  """Returns how often a collective is issued at the `count`-th step, from 1."""
  before, after = (math.floor(n * rate + _ROUNDING) for n in (count - 1, count))
  return after - before if count else 0
