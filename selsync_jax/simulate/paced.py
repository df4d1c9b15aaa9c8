"""Workers that keep their own pace on the virtual clock, as islands do.

The same objects decide which workers rest in a step, and which batches they
read. Only the times of steps come from the virtual cluster.
"""

from collections import deque
from collections.abc import Iterator, Mapping
import statistics
from typing import Any

import jax
import numpy as np

from selsync_jax.data.course import Course
from selsync_jax.data.leases import Reader
from selsync_jax.data.pace import KEPT
from selsync_jax.data.protocol import Batch, Data
from selsync_jax.devices.mapper import Function
from selsync_jax.devices.mappers import Vmap
from selsync_jax.simulate.cluster import VirtualCluster
from selsync_jax.training.participants import Participants
from selsync_jax.training.setup import Setup


class Paced(Participants):
  """Workers on one device; slower workers rest in some steps.

  Args:
    workers: N, the number of workers.
    cluster: the cluster, which gives the time of each step.
    delay: the number of steps in which an average travels.
  """

  may_rest = True

  def __init__(self, workers: int, cluster: VirtualCluster, delay: int):
    super().__init__(Vmap(workers))
    self._workers, self._cluster, self._delay = range(workers), cluster, delay
    self._course = Course(workers, is_free=True)
    self._begin(0, {})

  def _begin(self, step: int, record: Mapping[str, Any]) -> None:
    """Continues from a checkpoint's record after a step."""
    self._step, kept = step, record.get('pace', {})
    self._course.begin(step, record)
    self._due = kept.get('due')  # The step in which a late average arrives.
    seconds = kept.get('seconds', [()] * len(self._workers))
    self._seconds = [deque(each, KEPT) for each in seconds]

  def record(self, copied: bool = False) -> dict[str, Any]:
    """Returns the leases and the pace, with the times that decide it."""
    del copied
    kept = self._course.to_json()
    kept['pace'] |= {'seconds': [*map(list, self._seconds)], 'due': self._due}
    return kept

  def batches(
    self,
    data: Data,
    start: int,
    stop: int,
    record: Mapping[str, Any] | None = None,
  ) -> Iterator[Batch]:
    """Yields the workers' batches; resting workers get their last again."""
    fits = record and record['workers'] == len(self._workers)
    self._begin(start, record if record and fits else {})
    readers = [Reader(data, stop) for _ in self._workers]
    last: list[Batch | None] = [None] * len(readers)
    for _ in range(start, stop):
      self._course.next(self._workers)
      each = [
        self._course.batch(reader, slot, last[slot])
        for slot, reader in enumerate(readers)
      ]
      last = [*each]
      yield jax.tree.map(lambda *x: np.concatenate(x), *each)

  def train_step(self, setup: Setup) -> Function:
    """Returns the training step, after which the course continues."""
    step = setup.train_step()

    def call(state, batch):
      state, metrics = step(state, batch)
      self._complete(bool(metrics['synced'][0]))
      return state, metrics

    return call

  def _complete(self, synced: bool) -> None:
    """Notes that a step is complete."""
    step, self._step = self._step, self._step + 1
    arrives = self._due == self._step  # Another may depart in the same step.
    if synced and self._delay:
      self._due = self._step + self._delay
    averaged = self._course.complete(
      self._workers,
      synced=synced,
      late=bool(self._delay),
      arrived=True if arrives else None,
    )
    if averaged:
      medians = [statistics.median(each or [0.0]) for each in self._seconds]
      self._course.plan(dict(enumerate(medians)))
    elif not synced:
      for worker in set(self._workers) - self._course.rest:
        self._seconds[worker].append(self._cluster.seconds(worker, step))
