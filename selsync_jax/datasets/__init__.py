"""Data sets by name: where they come from, and what a model is given."""

from collections.abc import Callable, Mapping
import sys
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from selsync_jax.config import pick
from selsync_jax.datasets.digits import SklearnDigits

Examples = Mapping[str, np.ndarray]
"""Arrays with a leading axis of examples."""


class Source(NamedTuple):
  """A data set.

  Attributes:
    builder: `builder(data_dir=...)`, the TFDS builder.
    task: what it is for, a name in `tasks.TASKS`.
    classes: width of a model's output.
    prepare: from TFDS's arrays to those that a task and a model take.
  """

  builder: Callable[..., Any]
  task: str
  classes: int
  prepare: Callable[[Examples], Examples]


def _digits(examples: Examples) -> Examples:
  return {
    'image': examples['image'].astype(np.float32) / 16,
    'label': examples['label'].astype(np.int32),
  }


SOURCES = {'digits': Source(SklearnDigits, 'classification', 10, _digits)}


def create(name: str) -> Source:
  """The source `name`.

  Raises:
    ValueError: if there is none of that name.
  """
  return pick(SOURCES, name)


def load(source: Source, split: str, data_dir: str | None) -> Examples:
  """All examples of a split, in memory.

  Args:
    source: the data set; prepared on first use.
    split: its name in TFDS.
    data_dir: TFDS's data directory; `None` is TFDS's own default.
  """
  if not sys.stderr.isatty():
    tfds.disable_progress_bar()
  builder = source.builder(data_dir=data_dir)
  builder.download_and_prepare()
  return source.prepare(
    tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1))
  )
