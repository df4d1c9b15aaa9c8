"""The orders in which a worker reads the examples of a chunk.

An order is a pure function of (seed, epoch, chunk), the same for all workers.
`positions` returns the positions in their chunks that workers read, valid in
every slot, and a mask. Its argument `slot`, the slots of a batch, broadcasts
against `chunk`. A `contiguous` order needs chunks that are parts of the data
set as it is stored.

The examples of a chunk are spread over the smallest number of steps that can
hold them, as evenly as possible. Otherwise, SelSync's trigger would react to
the noisy gradient of a short batch at the end of every chunk. A mask marks the
slots that hold an example.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from selsync_jax.data import draws
from selsync_jax.data.index_shuffle import IndexShuffle


class ChunkProgress(NamedTuple):
  """The positions of workers in their chunks at a step; int64 arrays."""

  epoch: Any  # The number of chunks that the worker has read before this one.
  step: Any  # The number of steps since the worker began to read this chunk.
  steps: Any  # The number of steps in which it reads the chunk.
  start: Any  # Where the chunk begins in `Partition.indices`.
  size: Any  # The number of examples in the chunk.

  @property
  def even_share(self) -> tuple[Any, Any]:
    """The bounds of the positions that are read at this step."""
    first = self.step * self.size // self.steps
    return first, (self.step + 1) * self.size // self.steps


def _words(*names: Any) -> list[Any]:
  """Hashes the numbers that identify a shuffle into three words of 21 bits.

  The cipher takes the lowest bits of a word, 8 for up to 65,536 examples.
  Without the hash, seed 256 would equal seed 0.
  """
  bits = draws.bits(*names)
  return [(bits >> n & (1 << 21) - 1).astype(np.int64) for n in (0, 21, 42)]


@dataclasses.dataclass(frozen=True)
class Shuffled:
  """An order that shuffles a chunk in every epoch.

  With a `block_size`, it shuffles within blocks, which data on disk can hold in
  memory.
  """

  block_size: int | None = None

  @property
  def contiguous(self) -> bool:
    return self.block_size is not None

  def positions(
    self,
    chunk: ChunkProgress,
    slot: Any,
    batch_size: int,
    seed: int,
    shuffle: IndexShuffle,
  ) -> tuple[Any, Any]:
    """Returns positions: the same share of the chunk at every step."""
    del batch_size
    first, end = chunk.even_share
    read = first + slot
    place, begin, last = read % chunk.size, 0, chunk.size - 1
    if self.block_size:
      begin = place // self.block_size * self.block_size
      last = np.minimum(chunk.size - begin, self.block_size) - 1
    words = _words(seed, chunk.epoch, chunk.start + begin)
    return begin + shuffle(place - begin, words, last), read < end


@dataclasses.dataclass(frozen=True)
class TextStreams:
  """An order in which each slot of a batch reads its own part of the chunk.

  If a part has fewer examples than the chunk has steps, its slot is empty at
  some steps. These steps are spread evenly, and differ between slots.
  """

  contiguous: ClassVar[bool] = True

  def positions(self, chunk, slot, batch_size, seed, shuffle):
    del seed, shuffle
    begin = slot * chunk.size // batch_size
    end = (slot + 1) * chunk.size // batch_size
    phase = slot * chunk.steps // batch_size
    read = (chunk.step * (end - begin) + phase) // chunk.steps
    read_after = ((chunk.step + 1) * (end - begin) + phase) // chunk.steps
    return np.minimum(begin + read, end - 1), read_after > read


Order = Shuffled | TextStreams
