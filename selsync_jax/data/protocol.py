"""The interface between a data set and the training loop."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any

from jaxtyping import Int64, Integer
import numpy as np

from selsync_jax.config import RunError
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.ids import Check
from selsync_jax.data.order import Order, Shuffled

Examples = Mapping[str, np.ndarray]
"""Arrays with a leading axis of examples, by name."""

Batch = dict[str, np.ndarray]
"""Arrays [local workers, batch size, ...], by name.

One of them is `mask`, bool: whether the slot holds an example. Empty slots
repeat an example, so that a model computes finite values for them.
"""

Transform = Callable[[Any], Any]
"""`transform(examples)`, from arrays or tensors by name to others by name."""

KeyedTransform = Callable[[Any, Any], Any]
"""`train(examples, key)`; `key` is uint64, 64 random bits for each example."""

Prepare = Callable[[Any], Any]
"""`prepare(inputs)`: turns the inputs of a batch into a model's input.

It runs on the device, so images can travel there as bytes.
"""

SPLITS = ('train', 'validation', 'test')


def unchanged(value: Any) -> Any:
  """Returns its argument, for a data set that needs no transform."""
  return value


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(abc.ABC):
  """A data set that is open: in memory, or ready to be read from disk."""

  name: str  # Its name in a config.
  task: str  # A name in `tasks.TASKS`.
  num_classes: int  # The number of labels, or of tokens in the vocabulary.
  splits: Mapping[str, Any]  # By name in `SPLITS`.
  # Makes a batch of stored examples. If several backends read the data, it may
  # use only operators that arrays and tensors share.
  transform: Transform
  train: KeyedTransform | None = None  # Instead, for training.
  prepare: Prepare = unchanged
  # The order in which workers read their chunks.
  order: Order = dataclasses.field(default_factory=Shuffled)

  @functools.cached_property
  def sizes(self) -> Mapping[str, int]:
    """The number of examples of each split."""
    return {split: self.size(split) for split in self.splits}

  @property
  def labels(self) -> Integer[np.ndarray, 'examples'] | None:
    """The labels of all training examples, if they are in memory."""
    return None

  @property
  def bytes_per_example(self) -> float | None:
    """The size of a stored training example.

    `None` if examples stay on disk, where they cannot be injected.
    """
    return None

  @abc.abstractmethod
  def size(self, split: str) -> int:
    """Returns the number of examples of a split."""

  @abc.abstractmethod
  def training(
    self, assignment: Assignment, workers: Sequence[int], start: int, stop: int
  ) -> Iterator[Batch]:
    """Yields training batches of workers at steps `start` to `stop - 1`."""

  @abc.abstractmethod
  def evaluation(
    self, split: str, batch_size: int, workers: Sequence[int], total: int
  ) -> Iterator[Batch]:
    """Yields some workers' batches; all `total` hold every example once."""

  @abc.abstractmethod
  def mark(self, split: str) -> dict[str, Any]:
    """Returns checksums of examples that are spread over a split, for JSON."""

  def check(self, assignment: Assignment, eval_batch_size: int) -> None:  # noqa: B027
    """Raises `ConfigError` if the workers cannot share the splits in batches.

    Data in memory can be shared in any batches.
    """


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
  """The data of a run's workers.

  Every batch is a pure function of (seed, step): a resumed run needs only the
  step, and every process knows what every worker reads.
  """

  dataset: Dataset
  assignment: Assignment
  inspect: Check | None = None  # Checks every batch.

  def batches(
    self, workers: Sequence[int], start: int, stop: int
  ) -> Iterator[Batch]:
    """Yields training batches of workers at steps `start` to `stop - 1`."""
    batches = self.dataset.training(self.assignment, workers, start, stop)
    return self._inspected('train', batches)

  def evaluation(
    self, split: str, batch_size: int, workers: Sequence[int], total: int
  ) -> Iterator[Batch]:
    """Yields some workers' batches; all `total` hold every example once."""
    batches = self.dataset.evaluation(split, batch_size, workers, total)
    return self._inspected(split, batches)

  def _inspected(self, split: str, batches: Iterator[Batch]) -> Iterator[Batch]:
    for batch in batches:
      try:
        if self.inspect:
          self.inspect(batch)
      except ValueError as error:
        raise RunError(f'config.data: {split}: {error}') from error
      yield batch

  @property
  def fingerprint(self) -> dict[str, Any]:
    """The fingerprint of the stored examples, by split, for JSON.

    It holds sizes and a checksum of examples that are spread over the split,
    and is the same on all processes.
    """
    return {
      split: {'examples': examples, **self.dataset.mark(split)}
      for split, examples in self.dataset.sizes.items()
    }

  @property
  def label_counts(self) -> Int64[np.ndarray, 'workers labels'] | None:
    """The number of examples of each label in each worker's first chunk.

    `None` if the labels are not in memory.
    """
    labels = self.dataset.labels
    if labels is None:
      return None
    chunks, kinds = self.assignment.partition.chunks, int(labels.max()) + 1
    return np.stack([np.bincount(labels[c], minlength=kinds) for c in chunks])

  @property
  def injected_bytes_per_step(self) -> float:
    """The bytes of examples that a worker sends at a step, on average."""
    if not (injection := self.assignment.injection):
      return 0.0  # `bytes_per_example` would read some examples.
    return injection.examples_sent * (self.dataset.bytes_per_example or 0.0)

  @property
  def facts(self) -> dict[str, Any]:
    """Name, sizes and label counts (`labels`: [workers, labels]), for JSON."""
    counts = self.label_counts
    return {
      'name': self.dataset.name,
      'num_classes': self.dataset.num_classes,
      'examples': dict(self.dataset.sizes),
      'chunks': self.assignment.partition.sizes.tolist(),
      'labels': None if counts is None else counts.tolist(),
    }

  @functools.cached_property
  def example(self) -> Batch:
    """A batch of one example for one worker: arrays [1, ...]."""
    batch = next(self.evaluation('validation', 1, [0], 1))
    return {name: array[0] for name, array in batch.items()}
