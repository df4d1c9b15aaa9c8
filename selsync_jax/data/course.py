"""Each worker's batch in a step, or its rest; equal in every process."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selsync_jax.data.leases import Leases, Reader
from selsync_jax.data.pace import plan, WHOLE
from selsync_jax.data.protocol import Batch


class Course:
  """The `Leases` of a run, and which workers rest in which step.

  Args:
    slots: N, the number of the run's workers.
    is_free: whether workers keep their own pace; otherwise none rests.

  Attributes:
    leases: the leases.
    shares: the share of the steps that each worker takes, up to `WHOLE`.
    rest: the slots of workers that rest in the step under way.

  Example:
    >>> course = Course(2, is_free=True)
    >>> course.plan({0: 0.1, 1: 0.2})
    >>> for _ in range(4):
    ...   course.next([0, 1])
    ...   print([*course.rest])
    []
    [1]
    []
    [1]
  """

  def __init__(self, slots: int, is_free: bool = False):
    self.leases, self.is_free = Leases(slots), is_free
    self._slots = range(slots)
    self.begin(0, {})

  def begin(self, row: int, record: Mapping[str, Any]) -> None:
    """Continues after `row` steps, from the record of a checkpoint, if any.

    Without a record, no worker rests until a `plan`.
    """
    self.leases.begin(row, record.get('leases'))
    pace = record.get('pace') or {}
    self.shares = [*pace.get('shares', (WHOLE for _ in self._slots))]
    self._credits = [*pace.get('credits', (0 for _ in self._slots))]
    self.rest: set[int] = set()

  def to_json(self) -> dict[str, Any]:
    """Returns the entries of a record that `begin` reads."""
    pace = {'shares': [*self.shares], 'credits': [*self._credits]}
    return {'leases': self.leases.to_json(), 'pace': pace}

  def plan(self, seconds: Mapping[int, float]) -> None:
    """Decides which share of the steps each slot takes from now on.

    Args:
      seconds: the seconds that each present worker needs for a step, by slot; 0
        if it has not measured any, and then no worker rests.
    """
    shares = zip(seconds, plan([*seconds.values()]), strict=True)
    self.decide(dict(enumerate(self.shares)) | dict(shares))

  def decide(self, shares: Mapping[int, int]) -> None:
    """Gives slots their shares; all of them take the next step."""
    for slot, share in shares.items():
      self.shares[slot], self._credits[slot] = share, WHOLE - share

  def next(self, there: Sequence[int]) -> None:
    """Decides which batch each slot that takes the next step reads.

    The fastest of them never rests, even if a faster worker has left.
    """
    self.rest = set()
    if self.is_free:
      most = max(self.shares[slot] for slot in there)
      for slot in there:
        credit = self._credits[slot] + self.shares[slot] * WHOLE // most
        self._credits[slot] = credit % WHOLE
        if credit < WHOLE:
          self.rest.add(slot)
    self._cells = self.leases.next(there, self.rest)

  def batch(self, reader: Reader, slot: int, last: Batch | None) -> Batch:
    """Returns a worker's batch of the step.

    At a free pace, the batch says whether the worker rests, see `train_step`. A
    resting worker gets its `last` batch again, if there is one.
    """
    if not self.is_free:
      return reader.read(*self._cells[slot])
    rests = slot in self.rest
    batch = last if rests and last else reader.read(*self._cells[slot])
    return {**batch, 'rests': np.array([rests])}

  def complete(self, there: Sequence[int], **average: Any) -> bool:
    """Completes the step; returns whether an average was applied in it.

    See `Leases.complete` for the arguments.
    """
    self.leases.complete(there, self.rest, **average)
    return self.leases.averaged
