"""Data sets, and the batches that NumPy makes of those in memory."""

import abc
from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
from typing import Any, NamedTuple
import zlib

import numpy as np

from selsync_jax.config import config_errors
from selsync_jax.config import RunError
from selsync_jax.data import protocol
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.assignment import evaluation_schedule
from selsync_jax.data.assignment import Schedule
from selsync_jax.data.draws import bits
from selsync_jax.data.ids import Check
from selsync_jax.data.order import Order

Examples = Mapping[str, np.ndarray]
"""Arrays with a leading axis of examples, by name."""

Transform = Callable[[Any], Any]
"""`transform(examples)`, from arrays or tensors by name to others by name."""

KeyedTransform = Callable[[Any, Any], Any]
"""`train(examples, key)`; `key` is uint64, 64 random bits for each example."""

Block = Mapping[str, np.ndarray]
"""The contents of some workers' batches: arrays [steps, workers, slots].

`index`, int64, and `mask`, bool, are those of `Slots`; `key`, uint64, is 64
random bits for each slot, if a transform needs them.
"""

FETCH = 'fetch it with: tfds build {name} --data_dir={dir}'
"""How to get a data set that TFDS prepares."""

SPLITS = ('train', 'validation', 'test')


def count(examples: Examples) -> int:
  """Returns the number of examples."""
  return len(next(iter(examples.values())))


def forms(examples: Examples) -> str:
  """Returns name, shape of an example, and dtype of each array."""
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
  Iterator[protocol.Batch],
]
"""A backend, which takes the examples of each step of the blocks, casts them to
the dtypes, and transforms them, with `None` as key if the blocks have none."""


def read(
  examples: Examples,
  dtypes: Mapping[str, type],
  blocks: Iterator[Block],
  transform: KeyedTransform,
) -> Iterator[protocol.Batch]:
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
) -> protocol.Batch:
  """Makes the batch of a step of a block; `stored` takes flat indices."""
  index, key = slots['index'], slots.get('key')
  flat = transform(stored(index.ravel()), None if key is None else key.ravel())
  batch = {
    name: array.reshape(*index.shape, *array.shape[1:])
    for name, array in flat.items()
  }
  return batch | {'mask': slots['mask']}


@dataclasses.dataclass(frozen=True, eq=False)
class IndexedDataset(abc.ABC):
  """A data set whose examples can be read in any order.

  See `DatasetInfo` for the first fields.
  """

  name: str
  task: str
  num_classes: int
  order: Order
  splits: Mapping[str, Any]  # By name in `SPLITS`.
  # Makes a batch of stored examples. For both backends it may use only
  # operators that arrays and tensors share.
  transform: Transform
  train: KeyedTransform | None = None  # In its place for training batches.
  prepare: protocol.Prepare = protocol.unchanged

  @functools.cached_property
  def info(self) -> protocol.DatasetInfo:
    """The data set, without its examples."""
    sizes = {split: self.size(split) for split in self.splits}
    some = self.rows('train', sample(sizes['train'], 8))
    return protocol.DatasetInfo(
      self.name,
      self.task,
      self.num_classes,
      self.order,
      sizes,
      self.labels(),
      sum(array.nbytes for array in some.values()) / count(some),
      self.prepare,
    )

  def assigned(self, assignment: Assignment) -> 'IndexedData':
    """Returns the data of a run."""
    return IndexedData(self.info, assignment, self)

  def trial(self, split: str) -> Iterator[Examples]:
    """Yields small batches to check before training, spread over a split."""
    size = self.size(split)
    for index in np.array_split(sample(size, 64), min(size, 8)):
      yield self.transform(self.rows(split, index))

  @abc.abstractmethod
  def labels(self) -> np.ndarray | None:
    """Returns the labels of all training examples, if they are in memory."""

  @abc.abstractmethod
  def size(self, split: str) -> int:
    """Returns the number of examples of a split."""

  @abc.abstractmethod
  def rows(self, split: str, index: np.ndarray) -> Examples:
    """Returns stored examples, by their indices in a split."""

  @abc.abstractmethod
  def batches(
    self, split: str, schedule: Schedule, transform: KeyedTransform
  ) -> Iterator[protocol.Batch]:
    """Yields the batch of each step of a schedule of `Block`."""


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayDataset(IndexedDataset):
  """A data set in memory, whose splits are `Examples`."""

  # The dtypes that arrays are cast to before they are transformed, by name.
  dtypes: Mapping[str, type] = dataclasses.field(default_factory=dict)
  only_tf: str = ''  # Why NumPy cannot transform it; empty if it can.
  read: Read = read  # The backend.

  def labels(self):
    """See `IndexedDataset`."""
    return self.splits['train'].get('label')

  def size(self, split):
    """See `IndexedDataset`."""
    return count(self.splits[split])

  def rows(self, split, index):
    """See `IndexedDataset`."""
    return rows(self.splits[split], index)

  def trial(self, split):
    """Yields the whole split if nothing transforms it, and a part otherwise."""
    if self.transform is protocol.unchanged:
      return iter([self.splits[split]])
    return super().trial(split)

  def batches(self, split, schedule, transform):
    """See `IndexedDataset`."""
    examples, blocks = self.splits[split], schedule.blocks()
    return self.read(examples, self.dtypes, blocks, transform)


class TfdsSource(NamedTuple):
  """A data set of TFDS; see `ArrayDataset` for the fields without a comment."""

  name: str  # By default also TFDS's name for it.
  task: str
  num_classes: Callable[[Any], int]  # Takes TFDS's `DatasetInfo`.
  splits: Mapping[str, str]  # TFDS's name for each of `SPLITS`.
  order: Order
  transform: Transform
  train: KeyedTransform | None
  # Makes arrays of a `tf.data.Dataset` of all rows of a split. If `None`, the
  # data stay on disk, and `transform` and `train` take one example at a time.
  read: Callable[[Any], Examples] | None
  # How to get the data, with `{dir}` for TFDS's data directory.
  fetch: str = FETCH
  # `builder(data_dir=...)`, our own TFDS builder, which prepares the data on
  # first use. If `None`, TFDS's own command prepares them.
  builder: Callable[..., Any] | None = None
  prepare: protocol.Prepare = protocol.unchanged


@dataclasses.dataclass(frozen=True, eq=False)
class IndexedData(protocol.Data):
  """The data of a run's workers, whose examples can be read in any order."""

  dataset: IndexedDataset
  inspect: Check | None = None  # Of every batch.

  def checked(self, check):
    """See `Data`."""
    if check.inputs or check.targets:
      for split in self.info.sizes:
        for batch in self.dataset.trial(split):
          with config_errors(f'data: {split}'):
            check(batch)
    return dataclasses.replace(self, inspect=check)

  def _inspected(
    self, split: str, batches: Iterator[protocol.Batch]
  ) -> Iterator[protocol.Batch]:
    for batch in batches:
      try:
        if self.inspect:
          self.inspect(batch)
      except ValueError as error:
        raise RunError(f'config.data: {split}: {error}') from error
      yield batch

  def batches(self, workers, start, stop):
    """See `Data`."""
    seed, train = self.assignment.seed, self.dataset.train
    schedule = self.assignment.schedule(workers, start, stop)

    def block(steps):
      slots = schedule.block(steps)
      contents = {'index': slots.index, 'mask': slots.mask}
      if train:
        contents['key'] = bits(seed, slots.epoch, slots.index)
      return contents

    transform = train or _without_key(self.dataset.transform)
    keyed = schedule._replace(block=block)
    batches = self.dataset.batches('train', keyed, transform)
    return self._inspected('train', batches)

  def evaluation(self, split, batch_size, workers, total):
    """See `Data`."""
    examples = self.info.sizes[split]
    schedule = evaluation_schedule(examples, batch_size, workers, total)
    transform = _without_key(self.dataset.transform)
    batches = self.dataset.batches(split, schedule, transform)
    return self._inspected(split, batches)

  @property
  def fingerprint(self) -> dict[str, Any]:
    """See `Data`; 64 examples of each split are read, and all labels."""
    marks = {}
    for split, examples in self.info.sizes.items():
      stored = self.dataset.rows(split, sample(examples, 64))
      marks[split] = {
        'examples': examples,
        'arrays': forms(stored),
        'content': checksum(stored),
      }
    if self.info.labels is not None:  # Partitions may depend on every one.
      marks['train']['labels'] = checksum({'label': self.info.labels})
    return marks


def _without_key(transform: Transform) -> KeyedTransform:
  return lambda examples, key: transform(examples)
