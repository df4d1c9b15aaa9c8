"""Data sets of your own that TensorFlow reads."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from selsync_jax.config import ConfigError
from selsync_jax.data.arrays import Examples
from selsync_jax.data.tfdata.source import rows

_BATCH = 1024  # Examples that are converted together.


def read_all(dataset: tf.data.Dataset) -> Examples:
  """All examples of a finite data set, each a dict, as arrays.

  Raises:
    ValueError: if it has no end, or its elements are no dicts.
  """
  if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
    raise ValueError('the tf.data.Dataset has no end; leave out repeat()')
  if not isinstance(dataset.element_spec, dict):
    raise ValueError(
      f'the tf.data.Dataset must yield dicts, not {dataset.element_spec}'
    )
  batches = list(dataset.batch(_BATCH).as_numpy_iterator())
  return {
    name: np.concatenate([batch[name] for batch in batches])
    for name in (batches[0] if batches else ())
  }


def open_prepared(
  name: str, data_dir: str | None
) -> Callable[[str], tf.data.Dataset]:
  """From the splits of a data set that TFDS has prepared to their rows.

  Raises:
    ConfigError: if TFDS does not know it, or has not prepared it.
  """
  try:
    builder = tfds.builder(name, data_dir=data_dir)
  except tfds.core.registered.DatasetNotFoundError as error:
    (first, *_) = str(error).splitlines()
    raise ConfigError(f'config.data: TFDS: {first}') from error

  def split_rows(split: str) -> tf.data.Dataset:
    try:
      return rows(builder, split)
    except (AssertionError, FileNotFoundError) as error:
      raise ConfigError(
        f'config.data: no {name} in {builder.data_path}; fetch it with: '
        f'tfds build {name} --data_dir={builder.data_dir_root}'
      ) from error

  return split_rows
