"""Opens data sets that TFDS has prepared."""

from collections.abc import Generator
import contextlib
import functools
import io
import sys
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError
from selsync_jax.data import arrays
from selsync_jax.data.tfdata import pipelines
from selsync_jax.data.tfdata import streamed

_BATCH = 1024  # The number of examples that are converted together.


def open_source(
  source: arrays.Source, data_dir: str | None
) -> arrays.ArrayDataset | streamed.OpenShards:
  """Opens a data set, prepared on first use if this package prepares it."""
  builder = open_builder(source, data_dir)
  num_classes = source.num_classes(builder.info)
  if source.read is None:
    shards = {k: _shards(builder, v) for k, v in source.splits.items()}
    return streamed.OpenShards(source, num_classes, shards)
  with config_errors('data'):
    names = source.splits.items()
    splits = {k: source.read(streamed.rows(builder, v)) for k, v in names}
  return source.loaded(num_classes, splits, pipelines.read)


def _shards(builder: Any, split: str) -> streamed.Shards:
  """Returns a split on disk, from TFDS's name for it."""
  splits = builder.info.splits
  instruction = tfds.core.ReadInstruction.from_spec(split)
  (part,) = instruction.to_absolute(splits)
  first, last = part.from_ or 0, part.to or splits[part.splitname].num_examples
  return streamed.Shards(builder, part.splitname, first, last - first)


@contextlib.contextmanager
def _silence_tfds() -> Generator[None]:
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      yield
  finally:
    logging.set_verbosity(verbosity)


def open_builder(source: arrays.Source, data_dir: str | None) -> Any:
  """Returns the TFDS builder of a source; an error says how to get its data."""
  if not sys.stderr.isatty():
    tfds.disable_progress_bar()
  make = source.builder or functools.partial(tfds.builder, source.name)
  with _silence_tfds():
    builder = make(data_dir=data_dir)
    try:
      if source.builder:
        try:
          builder.download_and_prepare()
        except FileExistsError:  # Another process prepared it in the meantime.
          builder = make(data_dir=data_dir)
      streamed.rows(builder, source.splits['train'])
    except ValueError as error:
      raise ConfigError(f'config.data.name: {error}') from error
    except (AssertionError, OSError) as error:
      # TFDS raises AssertionError if the data are missing.
      if not isinstance(error, AssertionError | FileNotFoundError):
        raise ConfigError(f'config.data.dir: {error}') from error
      fetch = source.fetch.format(dir=builder.data_dir_root)
      raise ConfigError(
        f'config.data.name: no {source.name} in {builder.data_path}; {fetch}'
      ) from error
  return builder


def read_all(dataset: tf.data.Dataset) -> arrays.Examples:
  """Returns all examples of a finite data set, each a dict, as arrays."""
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


def read_split(name: str, split: str, data_dir: str | None) -> arrays.Examples:
  """Returns all examples of a split of a data set that TFDS has prepared."""
  try:
    builder = tfds.builder(name, data_dir=data_dir)
  except tfds.core.registered.DatasetNotFoundError as error:
    (first, *_) = str(error).splitlines()
    raise ConfigError(f'config.data: TFDS: {first}') from error
  try:
    dataset = streamed.rows(builder, split)
  except (AssertionError, FileNotFoundError) as error:
    raise ConfigError(
      f'config.data: no {name} in {builder.data_path}; fetch it with: '
      f'tfds build {name} --data_dir={builder.data_dir_root}'
    ) from error
  return read_all(dataset)
