"""What all implementations of `Data` have in common."""

import abc
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Int64, Integer
import numpy as np

from selsync_jax.data.assignment import Assignment
from selsync_jax.data.order import Order
from selsync_jax.data.protocol import Batch
from selsync_jax.data.protocol import Data


class DatasetInfo(NamedTuple):
  """A data set, without its examples.

  Attributes:
    name: as in a config.
    task: see `Data`.
    num_classes: see `Data`.
    order: in which order workers read their chunks.
    sizes: examples of the `train`, `validation` and `test` split.
    labels: of the training examples, if they are in memory.
    bytes_per_example: of a stored training example; None if examples stay on
      disk and cannot be injected.
  """

  name: str
  task: str
  num_classes: int
  order: Order
  sizes: Mapping[str, int]
  labels: Integer[np.ndarray, 'examples'] | None = None
  bytes_per_example: float | None = None


@runtime_checkable
class OpenDataset(Protocol):
  """A data set whose examples are in memory, or can be read from disk."""

  @property
  def info(self) -> DatasetInfo:
    """The data set, without its examples."""
    ...

  def assigned(self, assignment: Assignment) -> Data:
    """Returns the data of a run: who reads which of the examples."""
    ...


@dataclasses.dataclass(frozen=True, eq=False)
class PartitionedData(Data, abc.ABC):
  """A data set whose training examples are assigned to workers.

  Attributes:
    info: the data set.
    assignment: which worker reads which training example at which step.
  """

  info: DatasetInfo
  assignment: Assignment

  @abc.abstractmethod
  def batches(
    self, workers: Sequence[int], start: int, stop: int
  ) -> Iterator[Batch]:
    """See `Data`."""

  @abc.abstractmethod
  def evaluation(
    self, split: str, batch_size: int, workers: Sequence[int], total: int
  ) -> Iterator[Batch]:
    """See `Data`."""

  @property
  def task(self) -> str:
    """See `Data`."""
    return self.info.task

  @property
  def num_classes(self) -> int:
    """See `Data`."""
    return self.info.num_classes

  @property
  def steps_per_epoch(self) -> int:
    """See `Data`."""
    return self.assignment.steps_per_epoch

  @property
  def label_counts(self) -> Int64[np.ndarray, 'workers labels'] | None:
    """See `Data`."""
    labels = self.info.labels
    if labels is None:
      return None
    return np.stack(
      [
        np.bincount(labels[chunk], minlength=int(labels.max()) + 1)
        for chunk in self.assignment.partition.chunks
      ]
    )

  @property
  def injected_bytes_per_step(self) -> float:
    """See `Data`."""
    injection = self.assignment.injection
    if injection is None or self.info.bytes_per_example is None:
      return 0.0
    return injection.examples_sent * self.info.bytes_per_example

  @property
  def facts(self) -> dict[str, Any]:
    """See `Data`."""
    counts = self.label_counts
    return {
      'name': self.info.name,
      'num_classes': self.info.num_classes,
      'examples': dict(self.info.sizes),
      'chunks': self.assignment.partition.sizes.tolist(),
      'labels': None if counts is None else counts.tolist(),
    }

  @functools.cached_property
  def example(self) -> Batch:
    """See `Data`."""
    batch = next(self.evaluation('validation', 1, [0], 1))
    return {name: array[0] for name, array in batch.items()}
