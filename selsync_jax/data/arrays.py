"""Data sets, and the batches that NumPy makes of those in memory."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
from typing import Any, NamedTuple
import zlib

import numpy as np

from selsync_jax.data import protocol
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.assignment import evaluation_blocks
from selsync_jax.data.draws import bits
from selsync_jax.data.order import Order

Examples = Mapping[str, np.ndarray]
"""Arrays with a leading axis of examples, by name."""

Transform = Callable[[Any], Any]
"""`transform(examples)`, from arrays or tensors by name to others by name."""

KeyedTransform = Callable[[Any, Any], Any]
"""`train(examples, key)`; `key` is uint64, 64 random bits for each example."""

Block = Mapping[str, np.ndarray]
"""The contents of some workers' batches: arrays [steps, workers, slots].

`index`, int64, is an example index in every slot; `mask`, bool, whether the
slot holds an example; `key`, uint64, 64 random bits for each slot, if a
transform needs them.
"""

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


def sample(examples: int, size: int) -> np.ndarray:
  """Returns up to `size` indices of examples, spread from first to last."""
  return np.unique(np.linspace(0, examples - 1, size).astype(np.int64))


def checksum(examples: Examples) -> str:
  """Returns a CRC-32 of all arrays."""
  crc = 0
  for name in sorted(examples):
    crc = zlib.crc32(np.ascontiguousarray(examples[name]).tobytes(), crc)
  return f'{crc:08x}'


def unchanged(examples: Any) -> Any:
  """Returns the examples: the identity transform."""
  return examples


Read = Callable[
  [Examples, Mapping[str, type], Iterator[Block], KeyedTransform],
  Iterator[protocol.Batch],
]
"""A backend: `read(examples, dtypes, blocks, transform)` yields batches.

It takes the examples of each step of the blocks, casts them to the dtypes, and
transforms them. The transform's key is `None` if the blocks have none.
"""


def read(
  examples: Examples,
  dtypes: Mapping[str, type],
  blocks: Iterator[Block],
  transform: KeyedTransform,
) -> Iterator[protocol.Batch]:
  """Reads with NumPy alone; see `Read`."""
  for block in blocks:
    for step in range(len(block['index'])):
      slots = {name: array[step] for name, array in block.items()}
      index, key = slots['index'], slots.get('key')
      flat = {name: array[index.ravel()] for name, array in examples.items()}
      for name in flat.keys() & dtypes.keys():
        flat[name] = flat[name].astype(dtypes[name], copy=False)
      flat = transform(flat, None if key is None else key.ravel())
      batch = {
        name: array.reshape(*index.shape, *array.shape[1:])
        for name, array in flat.items()
      }
      yield batch | {'mask': slots['mask']}


class ArrayDataset(NamedTuple):
  """A data set in memory; see `DatasetInfo` for the first fields.

  Attributes:
    splits: the examples of the `train`, `validation` and `test` split.
    transform: `transform(examples)`, from stored examples to a batch. For both
      backends it may use only operators that arrays and tensors share.
    train: `train(examples, key)`, used for training batches instead of
      `transform`, if not `None`.
    dtypes: the dtypes that arrays are cast to before `transform`, by name.
    only_tf: why NumPy cannot transform it; empty if it can.
    read: the backend.
  """

  name: str
  task: str
  num_classes: int
  order: Order
  splits: Mapping[str, Examples]
  transform: Transform
  train: KeyedTransform | None = None
  dtypes: Mapping[str, type] = {}
  only_tf: str = ''
  read: Read = read

  @property
  def info(self) -> protocol.DatasetInfo:
    """The data set, without its examples."""
    train = self.splits['train']
    return protocol.DatasetInfo(
      self.name,
      self.task,
      self.num_classes,
      self.order,
      sizes={name: count(split) for name, split in self.splits.items()},
      labels=train.get('label'),
      bytes_per_example=sum(x.nbytes for x in train.values()) / count(train),
    )

  def assigned(self, assignment: Assignment) -> 'ArrayData':
    """Returns the data of a run."""
    return ArrayData(self.info, assignment, self)


class Source(NamedTuple):
  """A data set of TFDS; see `ArrayDataset` for `task`, `order` and `train`.

  Attributes:
    name: its name in a config, and by default in TFDS.
    num_classes: `num_classes(info)`, from TFDS's `DatasetInfo` to the number of
      labels or of tokens.
    splits: TFDS's name for each of `train`, `validation` and `test`.
    transform: `transform(examples)`, from stored tensors to a batch.
    read: `read(rows)`, from a `tf.data.Dataset` of all rows of a split to
      arrays. If `None`, the data set stays on disk, and `transform` and `train`
      take one example at a time.
    fetch: how to get the data set, with `{dir}` for TFDS's data directory.
    builder: `builder(data_dir=...)`, our own TFDS builder, which prepares the
      data on first use. If `None`, TFDS's own command prepares them.
  """

  name: str
  task: str
  num_classes: Callable[[Any], int]
  splits: Mapping[str, str]
  order: Order
  transform: Transform
  train: KeyedTransform | None
  read: Callable[[Any], Examples] | None
  fetch: str
  builder: Callable[..., Any] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayData(protocol.Data):
  """The data of a run's workers, from a data set in memory."""

  dataset: ArrayDataset

  def batches(self, workers, start, stop):
    """See `Data`."""
    seed, train = self.assignment.seed, self.dataset.train

    def blocks():
      for slots in self.assignment.blocks(workers, start, stop):
        block = {'index': slots.index, 'mask': slots.mask}
        if train:
          block['key'] = bits(seed, slots.epoch, slots.index)
        yield block

    return self._read('train', blocks(), train or self._plain)

  def evaluation(self, split, batch_size, workers, total):
    """See `Data`."""
    examples = self.info.sizes[split]
    blocks = evaluation_blocks(examples, batch_size, workers, total)
    named = ({'index': index, 'mask': mask} for index, mask in blocks)
    return self._read(split, named, self._plain)

  @property
  def fingerprint(self) -> dict[str, Any]:
    """See `Data`; 64 examples of each split are read."""
    marks = {}
    for split, examples in self.dataset.splits.items():
      rows = sample(count(examples), 64)
      content = checksum({k: v[rows] for k, v in examples.items()})
      marks[split] = {'examples': count(examples), 'arrays': forms(examples)}
      marks[split]['content'] = content
    return marks

  def _plain(self, examples, key):
    del key
    return self.dataset.transform(examples)

  def _read(self, split, blocks, transform):
    data = self.dataset
    return data.read(data.splits[split], data.dtypes, blocks, transform)
