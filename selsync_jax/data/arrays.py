"""Data sets that are read by index, and their batches by NumPy."""

import abc
from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import zlib

import numpy as np

from selsync_jax.data import protocol
from selsync_jax.data.assignment import evaluation_schedule, Schedule
from selsync_jax.data.draws import bits
from selsync_jax.data.protocol import Batch, Examples, KeyedTransform, Transform

Block = Mapping[str, np.ndarray]
"""The contents of some workers' batches: arrays [steps, workers, slots].

`index`, int64, and `mask`, bool, are as in `Slots`; `key`, uint64, holds 64
random bits for each slot, if a transform needs them.
"""


def count(examples: Examples) -> int:
  """Returns the number of examples."""
  return len(next(iter(examples.values())))


def forms(examples: Examples) -> str:
  """Returns the name, shape of an example, and dtype of each array."""
  return ', '.join(
    f'{name} {array.shape[1:]} {array.dtype}'
    for name, array in sorted(examples.items())
  )


def rows(examples: Examples, index: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the examples with some indices."""
  return {name: array[index] for name, array in examples.items()}


def sample(examples: int, size: int) -> np.ndarray:
  """Returns up to `size` indices of examples, spread from first to last."""
  return np.unique(np.linspace(0, examples - 1, size).astype(np.int64))


def checksum(examples: Examples) -> str:
  """Returns a CRC-32 of all arrays."""
  crc = 0
  for name in sorted(examples):
    crc = zlib.crc32(np.ascontiguousarray(examples[name]).tobytes(), crc)
  return f'{crc:08x}'


Read = Callable[
  [Examples, Mapping[str, type], Iterator[Block], KeyedTransform],
  Iterator[Batch],
]
"""A backend: gathers the examples of each step of the blocks, casts them to the
dtypes, and transforms them. The key is `None` if the blocks have no keys."""


def read(
  examples: Examples,
  dtypes: Mapping[str, type],
  blocks: Iterator[Block],
  transform: KeyedTransform,
) -> Iterator[Batch]:
  """Reads with NumPy alone; see `Read`."""

  def cast(index):
    flat = rows(examples, index)
    for name in flat.keys() & dtypes.keys():
      flat[name] = flat[name].astype(dtypes[name], copy=False)
    return flat

  for block in blocks:
    for step in range(len(block['index'])):
      slots = {name: array[step] for name, array in block.items()}
      yield make_batch(cast, slots, transform)


def make_batch(
  stored: Callable[[np.ndarray], Examples],
  slots: Mapping[str, np.ndarray],
  transform: KeyedTransform,
) -> Batch:
  """Makes the batch of a step of a block; `stored` takes flat indices."""
  index, key = slots['index'], slots.get('key')
  flat = transform(stored(index.ravel()), None if key is None else key.ravel())
  batch = {
    name: array.reshape(*index.shape, *array.shape[1:])
    for name, array in flat.items()
  }
  return batch | {'mask': slots['mask']}


@dataclasses.dataclass(frozen=True, eq=False)
class IndexedDataset(protocol.Dataset):
  """A data set whose examples can be read in any order."""

  @functools.cached_property
  def bytes_per_example(self) -> float:
    """The size of a stored training example."""
    some = self.rows('train', sample(self.sizes['train'], 8))
    return sum(array.nbytes for array in some.values()) / count(some)

  def training(self, assignment, workers, start, stop):
    seed, train = assignment.seed, self.train
    schedule = assignment.schedule(workers, start, stop)

    def block(steps):
      slots = schedule.block(steps)
      contents = {'index': slots.index, 'mask': slots.mask}
      if train:
        contents['key'] = bits(seed, slots.epoch, slots.index)
      return contents

    transform = train or without_key(self.transform)
    return self.batches('train', schedule._replace(block=block), transform)

  def evaluation(self, split, batch_size, workers, total):
    examples = self.sizes[split]
    schedule = evaluation_schedule(examples, batch_size, workers, total)
    return self.batches(split, schedule, without_key(self.transform))

  def mark(self, split):
    """See `Dataset`; reads 64 examples, and all labels."""
    stored = self.rows(split, sample(self.sizes[split], 64))
    mark = {'arrays': forms(stored), 'content': checksum(stored)}
    if split == 'train' and self.labels is not None:
      mark['labels'] = checksum({'label': self.labels})  # For partitions.
    return mark

  def trial(self, split: str) -> Iterator[Examples]:
    """Yields small batches to check before training, spread over a split."""
    size = self.sizes[split]
    for index in np.array_split(sample(size, 64), min(size, 8)):
      yield self.transform(self.rows(split, index))

  @abc.abstractmethod
  def rows(self, split: str, index: np.ndarray) -> Examples:
    """Returns stored examples, by their indices in a split."""

  @abc.abstractmethod
  def batches(
    self, split: str, schedule: Schedule, transform: KeyedTransform
  ) -> Iterator[Batch]:
    """Yields the batch of each step of a schedule of `Block`."""


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayDataset(IndexedDataset):
  """A data set in memory, whose splits are `Examples`."""

  # The dtypes that arrays are cast to before they are transformed, by name.
  dtypes: Mapping[str, type] = dataclasses.field(default_factory=dict)
  read: Read = read  # The backend.

  @property
  def labels(self):
    return self.splits['train'].get('label')

  def size(self, split):
    return count(self.splits[split])

  def rows(self, split, index):
    return rows(self.splits[split], index)

  def trial(self, split):
    """Yields the whole split if nothing transforms it, and a part otherwise."""
    if self.transform is protocol.unchanged:
      return iter([self.splits[split]])
    return super().trial(split)

  def batches(self, split, schedule, transform):
    examples, blocks = self.splits[split], schedule.blocks()
    return self.read(examples, self.dtypes, blocks, transform)


def without_key(transform: Transform) -> KeyedTransform:
  """Returns the transform as a `KeyedTransform` that ignores its key."""
  return lambda examples, key: transform(examples)
