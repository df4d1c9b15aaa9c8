"""Data sets that TFDS prepares and reads."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from annotated_types import Interval
import numpy as np

from selsync_jax.data.arrays import Examples
from selsync_jax.data.arrays import KeyedTransform
from selsync_jax.data.arrays import Transform
from selsync_jax.data.order import Order

Pixels = Annotated[int, Interval(ge=1, le=4096)]
"""Pixels per side of an image."""

Tokens = Annotated[int, Interval(ge=1, le=2**16)]
"""Tokens in an example of text."""


class Source(NamedTuple):
  """A data set of TFDS.

  Attributes:
    name: its name in a config, and by default in TFDS.
    task: what the data are for, a name in `tasks.TASKS`.
    num_classes: `num_classes(info)`, from TFDS's `DatasetInfo` to the number of
      labels or of tokens.
    splits: TFDS's name for each of `train`, `validation` and `test`.
    order: the order in which workers read their chunks.
    transform: `transform(examples)`, from stored tensors to a batch.
    train: `train(examples, key)` for training batches; see `ArrayDataset`.
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


def num_labels(info: Any) -> int:
  """Returns the number of labels of a data set of TFDS."""
  return info.features['label'].num_classes


def images(rows: Any) -> Examples:
  """Returns all images of a split as stored, and their labels."""
  (batch,) = rows.batch(len(rows)).as_numpy_iterator()
  return {'image': batch['image'], 'label': batch['label'].astype(np.int32)}
