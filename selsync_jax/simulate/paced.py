"""Workers that keep their own pace on the virtual clock, as islands do.

Who rests in which step, and who reads which batch, is decided by the same
objects. Only the times of steps are those of the virtual cluster.
"""

from collections import deque
from collections.abc import Iterator, Mapping
import dataclasses
import functools
import statistics
from typing import Any

import jax
import numpy as np

from selsync_jax.data.leases import batch_of
from selsync_jax.data.leases import Leases
from selsync_jax.data.leases import Reader
from selsync_jax.data.pace import KEPT
from selsync_jax.data.pace import Pace
from selsync_jax.data.protocol import Batch
from selsync_jax.data.protocol import Data
from selsync_jax.devices.mapper import Function
from selsync_jax.devices.mappers import Vmap
from selsync_jax.simulate.cluster import VirtualCluster
from selsync_jax.sync.averagers import Delay


@dataclasses.dataclass(frozen=True)
class Paced(Vmap):
  """All workers on the first device; the slower ones rest in some steps.

  Attributes:
    cluster: it says how long a worker needs for a step.
    delay: in how many steps an average travels.
  """

  cluster: VirtualCluster
  delay: int

  @property
  def is_free(self) -> bool:
    """Yes."""
    return True

  @functools.cached_property
  def _course(self) -> '_Course':
    return _Course(self)

  @property
  def kept(self) -> dict[str, Any]:
    """The leases and the pace."""
    return self._course.to_json()

  def batches(
    self,
    data: Data,
    start: int,
    stop: int,
    record: Mapping[str, Any] | None = None,
  ) -> Iterator[Batch]:
    """Yields what the workers read; one that rests has its last batch again."""
    known = record if record and record['workers'] == self.workers else {}
    course = self._course
    course.begin(start, known)
    readers = [Reader(data, stop) for _ in range(self.workers)]
    last: list[Batch | None] = [None] * self.workers
    for _ in range(start, stop):
      cells = course.next()
      each = [
        batch_of(reader, cells, slot, course.rest, last[slot])
        for slot, reader in enumerate(readers)
      ]
      last = [*each]
      yield jax.tree.map(lambda *x: np.concatenate(x), *each)

  def map_steps(self, step: Function, delay: Delay | None) -> Function:
    """Maps a training step; the course goes on with it."""
    mapped = super().map_steps(step, delay)

    def call(state, batch):
      state, metrics = mapped(state, batch)
      self._course.complete(bool(metrics['synced'][0]))
      return state, metrics

    return call


class _Course:
  """Where each worker is, and how long its last steps have taken."""

  def __init__(self, mapper: Paced):
    self._cluster, self._delay = mapper.cluster, mapper.delay
    self._workers = range(mapper.workers)
    self._leases, self._pace = Leases(mapper.workers), Pace(mapper.workers)
    self.begin(0, {})

  def begin(self, step: int, known: Mapping[str, Any]) -> None:
    """Goes on with what a record has kept after a step."""
    self._step, kept = step, known.get('pace', {})
    self._leases.begin(step, known.get('leases'))
    self._pace.begin(kept)
    self._due = kept.get('due')  # The step in which a late average arrives.
    seconds = kept.get('seconds', [()] * len(self._workers))
    self._seconds = [deque(each, KEPT) for each in seconds]
    self.rest: set[int] = set()

  def to_json(self) -> dict[str, Any]:
    """Returns what `begin` needs to go on."""
    own = {'seconds': [*map(list, self._seconds)], 'due': self._due}
    pace = self._pace.to_json() | own
    return {'leases': self._leases.to_json(), 'pace': pace}

  def next(self) -> dict[int, tuple[int, int]]:
    """Returns what each worker reads in the next step; see `Leases.next`."""
    self.rest = self._pace.next(self._workers)
    return self._leases.next(self._workers, self.rest)

  def complete(self, synced: bool) -> None:
    """Notes that a step is complete."""
    step, self._step = self._step, self._step + 1
    arrives = self._due == self._step  # Another may depart in the same step.
    if synced and self._delay:
      self._due = self._step + self._delay
    self._leases.complete(
      self._workers,
      self.rest,
      synced=synced,
      late=bool(self._delay),
      arrived=True if arrives else None,
    )
    if self._leases.averaged:
      medians = [statistics.median(each or [0.0]) for each in self._seconds]
      self._pace.plan(dict(enumerate(medians)))
    elif not synced:
      for worker in set(self._workers) - self.rest:
        self._seconds[worker].append(self._cluster.seconds(worker, step))
