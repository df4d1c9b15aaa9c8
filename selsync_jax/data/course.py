"""Each worker's batch in a step, or its rest; equal in every process."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selsync_jax.data.leases import Leases, Reader
from selsync_jax.data.pace import Pace
from selsync_jax.data.protocol import Batch


class Course:
  """The `Leases` and the `Pace` of a run.

  Args:
    slots: N, the number of the run's workers.
    is_free: whether workers keep their own pace; otherwise none rests.

  Attributes:
    rest: the slots of workers that rest in the step under way.
  """

  def __init__(self, slots: int, is_free: bool = False):
    self.leases, self.pace = Leases(slots), Pace(slots)
    self.is_free = is_free
    self.rest: set[int] = set()

  def begin(self, row: int, record: Mapping[str, Any]) -> None:
    """Continues after `row` steps, from the record of a checkpoint, if any."""
    self.leases.begin(row, record.get('leases'))
    self.pace.begin(record.get('pace'))
    self.rest = set()

  def to_json(self) -> dict[str, Any]:
    """Returns the entries of a record that `begin` reads."""
    return {'leases': self.leases.to_json(), 'pace': self.pace.to_json()}

  def next(self, there: Sequence[int]) -> None:
    """Decides which batch each slot that takes the next step reads."""
    self.rest = self.pace.next(there) if self.is_free else set()
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
