"""The interface between a data set and the training loop."""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Int64, Integer
import numpy as np

from selsync_jax.data.assignment import Assignment
from selsync_jax.data.ids import Check
from selsync_jax.data.order import Order

Batch = dict[str, np.ndarray]
"""Arrays [local workers, batch size, ...], by name.

One of them is `mask`, bool: whether the slot holds an example. The other slots
repeat an example, so that a model computes finite values for them.
"""

Prepare = Callable[[Any], Any]
"""`prepare(inputs)`: what a model reads of the inputs of a batch.

The device computes it, so images can travel to it as bytes.
"""


def unchanged(value: Any) -> Any:
  """Returns the value: the identity."""
  return value


class DatasetInfo(NamedTuple):
  """A data set, without its examples."""

  name: str  # Its name in a config.
  task: str  # What the data are for, a name in `tasks.TASKS`.
  num_classes: int  # The number of labels, or of tokens in the vocabulary.
  order: Order  # The order in which workers read their chunks.
  sizes: Mapping[str, int]  # The examples of `train`, `validation` and `test`.
  # The labels of the training examples, if they are in memory.
  labels: Integer[np.ndarray, 'examples'] | None = None
  # The size of a stored training example; `None` if examples stay on disk,
  # where they cannot be injected.
  bytes_per_example: float | None = None
  prepare: Prepare = unchanged


@dataclasses.dataclass(frozen=True, eq=False)
class Data(abc.ABC):
  """The data of a run's workers.

  Every batch is a pure function of (seed, step): a resumed run needs only the
  step, and every process knows what every worker reads.
  """

  info: DatasetInfo
  assignment: Assignment

  @abc.abstractmethod
  def batches(
    self, workers: Sequence[int], start: int, stop: int
  ) -> Iterator[Batch]:
    """Yields training batches of workers at steps `start` to `stop - 1`."""

  @abc.abstractmethod
  def evaluation(
    self, split: str, batch_size: int, workers: Sequence[int], total: int
  ) -> Iterator[Batch]:
    """Yields some workers' batches; all `total` hold every example once."""

  def check(self, eval_batch_size: int) -> None:  # noqa: B027
    """Raises `ConfigError` if the workers cannot share the splits in batches.

    Data in memory can be shared in any.
    """

  def checked(self, check: Check) -> 'Data':
    """Returns these data, with a check of examples now, and of every batch."""
    del check
    return self

  @property
  @abc.abstractmethod
  def fingerprint(self) -> dict[str, Any]:
    """What tells the stored examples from others, by split, for JSON.

    It holds sizes and a checksum of examples that are spread over the split,
    and is the same on all processes.
    """

  @property
  def label_counts(self) -> Int64[np.ndarray, 'workers labels'] | None:
    """The number of examples of each label in each worker's first chunk.

    `None` if the labels are not in memory.
    """
    labels = self.info.labels
    if labels is None:
      return None
    chunks, kinds = self.assignment.partition.chunks, int(labels.max()) + 1
    return np.stack([np.bincount(labels[c], minlength=kinds) for c in chunks])

  @property
  def injected_bytes_per_step(self) -> float:
    """The bytes of examples that a worker sends at a step, on average."""
    injection = self.assignment.injection
    if injection is None or self.info.bytes_per_example is None:
      return 0.0
    return injection.examples_sent * self.info.bytes_per_example

  @property
  def facts(self) -> dict[str, Any]:
    """Name, sizes and label counts (`labels`: [workers, labels]), for JSON."""
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
    """A batch of one example for one worker: arrays [1, ...]."""
    batch = next(self.evaluation('validation', 1, [0], 1))
    return {name: array[0] for name, array in batch.items()}


@runtime_checkable
class OpenDataset(Protocol):
  """A data set that is open: in memory, or ready to be read from disk."""

  @property
  def info(self) -> DatasetInfo:
    """The data set, without its examples."""

  def assigned(self, assignment: Assignment) -> Data:
    """Returns the data of a run with this assignment."""
