"""The orders in which a worker reads the examples of a chunk.

An order is a pure function of (seed, epoch, chunk), the same for all workers.

The examples of a chunk are spread over the smallest number of steps that can
hold them, as evenly as possible. Otherwise, SelSync's trigger would react to
the noisy gradient of a short batch at the end of every chunk. A mask marks the
slots that hold an example.
"""

import abc
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


class Order(abc.ABC):
  """Which position of its chunk a worker reads in each slot of a batch."""

  contiguous: ClassVar[bool] = True  # Chunks are parts of the data set.

  @abc.abstractmethod
  def positions(
    self,
    chunk: ChunkProgress,
    slot: Any,
    batch_size: int,
    seed: int,
    shuffle: IndexShuffle,
  ) -> tuple[Any, Any]:
    """Returns the positions in their chunks that workers read, and a mask.

    `slot`, slots of a batch of `batch_size`, broadcasts against `chunk`.
    Positions are valid in every slot.
    """


def _words(*names: Any) -> list[Any]:
  """Hashes the numbers that identify a shuffle into three words of 21 bits.

  The cipher takes the lowest bits of a word, 8 for up to 65,536 examples.
  Without the hash, seed 256 would equal seed 0.
  """
  bits = draws.bits(*names)
  return [(bits >> n & (1 << 21) - 1).astype(np.int64) for n in (0, 21, 42)]


@dataclasses.dataclass(frozen=True)
class ShuffledChunk(Order):
  """An order that shuffles the whole chunk in every epoch."""

  contiguous: ClassVar[bool] = False

  def shuffled(
    self, position: Any, chunk: ChunkProgress, seed: int, shuffle: IndexShuffle
  ) -> Any:
    """Maps positions in a chunk to other positions."""
    words = _words(seed, chunk.epoch, chunk.start)
    return shuffle(position, words, chunk.size - 1)

  def positions(self, chunk, slot, batch_size, seed, shuffle):
    """See `Order`: the same share of the chunk at every step, shuffled."""
    del batch_size
    first, end = chunk.even_share
    position = first + slot
    shuffled = self.shuffled(position % chunk.size, chunk, seed, shuffle)
    return shuffled, position < end


@dataclasses.dataclass(frozen=True)
class ShuffledBlocks(ShuffledChunk):
  """An order for examples on disk; shuffles within blocks held in memory."""

  block_size: int
  contiguous: ClassVar[bool] = True

  def shuffled(self, position, chunk, seed, shuffle):
    """Maps positions in a chunk to other positions of the same block."""
    block = position // self.block_size * self.block_size
    last = np.minimum(chunk.size - block, self.block_size) - 1
    words = _words(seed, chunk.epoch, chunk.start + block)
    return block + shuffle(position - block, words, last)


@dataclasses.dataclass(frozen=True)
class TextStreams(Order):
  """An order in which each slot of a batch reads its own part of the chunk.

  If a part has fewer examples than the chunk has steps, its slot is empty at
  some steps. These steps are spread evenly, and differ between slots.
  """

  def positions(self, chunk, slot, batch_size, seed, shuffle):
    del seed, shuffle
    begin = slot * chunk.size // batch_size
    end = (slot + 1) * chunk.size // batch_size
    phase = slot * chunk.steps // batch_size
    read = (chunk.step * (end - begin) + phase) // chunk.steps
    read_after = ((chunk.step + 1) * (end - begin) + phase) // chunk.steps
    return np.minimum(begin + read, end - 1), read_after > read
