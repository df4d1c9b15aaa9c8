"""Data in memory as NumPy arrays, read without TensorFlow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from selsync_jax.data.array_ops import numpy_ops
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.assignment import evaluation_slots
from selsync_jax.data.assignment import evaluation_steps
from selsync_jax.data.draws import bits
from selsync_jax.data.order import Order
from selsync_jax.data.partitioned import DatasetInfo
from selsync_jax.data.partitioned import PartitionedData
from selsync_jax.data.protocol import Batch

Examples = Mapping[str, np.ndarray]
"""Arrays with a leading axis of examples, by name."""

Augment = Callable[[Examples, np.ndarray], Examples]
"""`augment(batch, key)`; key is uint64, 64 random bits for each example."""

_STEPS = 64  # Computed together, which is cheaper than one by one.


def count(examples: Examples) -> int:
  """Number of examples."""
  return len(next(iter(examples.values())))


def unchanged(examples: Examples) -> Examples:
  """The transform that does nothing."""
  return examples


def bytes_per_example(examples: Examples) -> float:
  """Mean size of an example in memory."""
  return sum(array.nbytes for array in examples.values()) / count(examples)


class ArrayDataset(NamedTuple):
  """A data set in memory that NumPy transforms.

  Attributes:
    name: as in a config.
    task: what the data are for, a name in `tasks.TASKS`.
    num_classes: number of labels, or of tokens in the vocabulary.
    order: in which order workers read their chunks.
    splits: examples of the `train`, `validation` and `test` split.
    transform: `transform(examples)`, from stored examples to a batch.
    augment: of training batches after that; `None` does nothing.
  """

  name: str
  task: str
  num_classes: int
  order: Order
  splits: Mapping[str, Examples]
  transform: Callable[[Examples], Examples]
  augment: Augment | None = None

  @property
  def info(self) -> DatasetInfo:
    """The data set, without its examples."""
    train = self.splits['train']
    return DatasetInfo(
      self.name,
      self.task,
      self.num_classes,
      self.order,
      sizes={name: count(split) for name, split in self.splits.items()},
      labels=train.get('label'),
      bytes_per_example=bytes_per_example(train),
    )

  def assigned(self, assignment: Assignment) -> 'ArrayData':
    """Returns the data of a run."""
    return ArrayData(self.info, assignment, self)


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayData(PartitionedData):
  """See `PartitionedData`."""

  dataset: ArrayDataset

  def batches(
    self, workers: Sequence[int], start: int, stop: int
  ) -> Iterator[Batch]:
    """See `Data`."""
    ops = numpy_ops()
    for first in range(start, stop, _STEPS):
      steps = np.arange(first, min(first + _STEPS, stop))[:, None, None]
      slots = self.assignment.slots(workers, steps, ops)
      for index, mask, epoch in zip(
        slots.index, slots.mask, slots.epoch, strict=True
      ):
        yield self._batch('train', index, mask, epoch)

  def evaluation(
    self, split: str, batch_size: int, workers: Sequence[int], total: int
  ) -> Iterator[Batch]:
    """See `Data`."""
    examples, ops = self.info.sizes[split], numpy_ops()
    for step in range(evaluation_steps(examples, batch_size, total)):
      slots = evaluation_slots(examples, batch_size, workers, total, step, ops)
      yield self._batch(split, slots.index, slots.mask)

  def _batch(self, split, index, mask, epoch=None):
    dataset = self.dataset
    flat = {k: v[index.ravel()] for k, v in dataset.splits[split].items()}
    flat = dataset.transform(flat)
    if dataset.augment and epoch is not None:
      key = bits(self.assignment.seed, epoch.ravel(), index.ravel())
      flat = dataset.augment(flat, key)
    batch = {
      name: array.reshape(*index.shape, *array.shape[1:])
      for name, array in flat.items()
    }
    return batch | {'mask': mask}
