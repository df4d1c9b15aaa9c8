"""Opens data sets that TFDS has prepared."""

from collections.abc import Callable, Generator
import contextlib
import functools
import io
import sys
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from selsync_jax.config import config_errors, ConfigError
from selsync_jax.data import protocol

FETCH = 'fetch it with: tfds build {name} --data_dir={dir}'
"""How to get a data set that TFDS prepares."""

_BATCH = 1024  # The number of examples that are converted together.


def rows(builder: Any, split: str, **options: Any) -> tf.data.Dataset:
  """Returns the rows of a TFDS split, in the order of its shards."""
  config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
  return builder.as_dataset(split=split, read_config=config, **options)


@contextlib.contextmanager
def _silence_tfds() -> Generator[None]:
  verbosity = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      yield
  finally:
    logging.set_verbosity(verbosity)


def open_builder(
  name: str,
  split: str,
  data_dir: str | None,
  fetch: str = FETCH,
  make: Callable[..., Any] | None = None,
) -> Any:
  """Returns the TFDS builder of a data set that has a split.

  If `make`, our own builder, is given, it prepares the data. An error says how
  to `fetch` the data.
  """
  if not sys.stderr.isatty():
    tfds.disable_progress_bar()
  create = make or functools.partial(tfds.builder, name)
  with _silence_tfds(), config_errors('data.name'):
    try:
      builder = create(data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError as error:
      (first, *_) = str(error).splitlines()
      raise ValueError(f'TFDS: {first}') from error
    try:
      if make:
        try:
          builder.download_and_prepare()
        except FileExistsError:  # Another process prepared it in the meantime.
          builder = make(data_dir=data_dir)
      rows(builder, split)
    except (AssertionError, FileNotFoundError) as error:  # No data.
      how = fetch.format(name=name, dir=builder.data_dir_root)
      raise ValueError(f'no {name} in {builder.data_path}; {how}') from error
    except OSError as error:
      raise ConfigError(f'config.data.dir: {error}') from error
  return builder


def read_all(dataset: tf.data.Dataset) -> protocol.Examples:
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
