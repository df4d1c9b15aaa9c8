"""The examples that each worker reads at each step, as indices.

They are a pure function of (seed, step), so a resumed run computes no earlier
steps, and every process knows what all workers read. All backends start here.
"""

from collections.abc import Callable, Iterator, Sequence
import functools
from typing import Any, NamedTuple

from jaxtyping import Bool, Int64
import numpy as np

from selsync_jax.data.index_shuffle import IndexShuffle
from selsync_jax.data.injection import Injection
from selsync_jax.data.order import ChunkProgress, Order
from selsync_jax.data.partitions import Partition

# Computing many steps at a time is faster. A block has at most `_STEPS` steps
# and at most `_SLOTS` slots.
_STEPS, _SLOTS = 256, 2**17


class Schedule(NamedTuple):
  """The data that some workers read at steps `start` to `stop - 1`."""

  block: Callable[[Int64[np.ndarray, 'steps']], Any]  # Takes any steps.
  start: int
  stop: int
  slots: int  # The number of slots of a step.

  def blocks(self) -> Iterator[Any]:
    """Yields blocks in order; the first are short, for a quick first batch."""
    start, size, most = self.start, 1, max(1, min(_STEPS, _SLOTS // self.slots))
    while start < self.stop:
      yield self.block(np.arange(start, min(start + size, self.stop)))
      start, size = start + size, min(4 * size, most)


def progress(
  partition: Partition,
  batch_size: int,
  worker: Int64[np.ndarray, '...'],
  step: Int64[np.ndarray, '...'],
) -> ChunkProgress:
  """Returns how far workers have read their chunks, `batch_size` at a step."""
  steps = partition.steps_per_chunk(batch_size)[worker]
  epoch = step // steps
  chunk = worker
  if partition.rotates:
    chunk = (worker + epoch) % len(partition.sizes)
  return ChunkProgress(
    epoch=epoch,
    step=step % steps,
    steps=steps,
    start=partition.bounds[chunk],
    size=partition.sizes[chunk],
  )


Indices = Int64[np.ndarray, 'steps workers slots']
Mask = Bool[np.ndarray, 'steps workers slots']


class Slots(NamedTuple):
  """The contents of training batches."""

  index: Indices  # A valid example index in every slot.
  mask: Mask  # Whether the slot holds this example.
  epoch: Indices  # The epoch in which the example is read.
  reader: Indices  # The worker that reads it from its chunk.


class Assignment(NamedTuple):
  """Which worker reads which training example at which step."""

  partition: Partition  # Of the training examples over all workers.
  order: Order
  injection: Injection | None
  batch_size: int  # The number of slots in a worker's batch.
  seed: int  # The seed of shuffles and draws.

  @property
  def steps_per_epoch(self) -> int:
    """The steps in which all workers together read as much as the data set."""
    return self.partition.steps_per_epoch(self.batch_size)

  def slots(
    self,
    workers: Sequence[int],
    steps: Int64[np.ndarray, 'steps'],
    shuffle: IndexShuffle,
  ) -> Slots:
    """Returns the contents of some workers' batches at some steps."""
    worker = np.asarray(workers, np.int64)[:, None]
    step = steps[:, None, None]
    own, reader, counts = self.batch_size, worker, True
    slot = np.arange(own)
    if self.injection:
      own = self.injection.own  # The other slots hold shared examples.
      reader, slot, counts = self.injection.sources(worker, step, self.seed)
    chunk = progress(self.partition, own, reader, step)
    position, mask = self.order.positions(chunk, slot, own, self.seed, shuffle)
    index = self.partition.indices[chunk.start + position]
    return Slots(
      index=index,
      mask=mask & counts,
      epoch=np.broadcast_to(chunk.epoch, index.shape),
      reader=np.broadcast_to(reader, index.shape),
    )

  def schedule(self, workers: Sequence[int], start: int, stop: int) -> Schedule:
    """Returns a schedule whose blocks are the slots of some workers."""
    block = functools.partial(self.slots, workers, shuffle=IndexShuffle())
    return Schedule(block, start, stop, len(workers) * self.batch_size)


def evaluation_schedule(
  examples: int, batch_size: int, workers: Sequence[int], total: int
) -> Schedule:
  """Returns a schedule whose blocks are `index` and `mask` of `Slots`.

  All `total` workers together read every example of a split once.
  """
  worker = np.asarray(workers, np.int64)[:, None]
  slot = worker * batch_size + np.arange(batch_size)
  together = total * batch_size

  def block(steps):
    index = steps[:, None, None] * together + slot
    return {'index': np.minimum(index, examples - 1), 'mask': index < examples}

  return Schedule(block, 0, -(-examples // together), slot.size)
