"""Opens the data set that a config names."""

from collections.abc import Callable, Mapping
import importlib.util
import pathlib
from typing import Any

from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError
from selsync_jax.config import keyword_arguments
from selsync_jax.config import lookup
from selsync_jax.data import arrays
from selsync_jax.data.arrays import Read
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.fields import own_fields
from selsync_jax.data.injection import make_injection
from selsync_jax.data.own import open_own
from selsync_jax.data.partitions import make_partition
from selsync_jax.data.protocol import Data
from selsync_jax.data.protocol import OpenDataset
from selsync_jax.data.sources import BY_NUMPY
from selsync_jax.data.sources import DATASETS


def _tensorflow() -> Read:
  from selsync_jax.data.tfdata import pipelines  # Takes seconds to import.

  return pipelines.read


BACKENDS: dict[str, Callable[[], Read]] = {
  'tf': _tensorflow,
  'numpy': lambda: arrays.read,
}
_PARTITION_FIELDS = ('labels_per_worker', 'dirichlet_alpha')


def open_data(
  fields: Mapping[str, Any], *, workers: int, batch_size: int, seed: int
) -> Data:
  """Opens a data set and assigns its examples to workers.

  Args:
    fields: `data` of the config; see configs/base.py.
    workers: the number of workers of the run.
    batch_size: the number of examples per worker and step.
    seed: the seed of the partition, of shuffles and of draws.

  Raises:
    ConfigError: for the first field whose value breaks its rule, or if the data
      are not there.
  """
  return assign(
    open_dataset(fields),
    fields,
    workers=workers,
    batch_size=batch_size,
    seed=seed,
  )


def open_dataset(fields: Mapping[str, Any]) -> OpenDataset:
  """Opens a data set; arguments and errors are those of `open_data`."""
  name = fields['name']
  with config_errors('data'):
    make = lookup(DATASETS, name)
    arguments = keyword_arguments(make, name, own_fields(fields))
    if DATASETS.is_own(name):
      return open_own(name, arguments)
  backend = _backend(fields['backend'])
  directory = check_directory(fields['dir'])
  try:
    with config_errors('data'):
      if name in BY_NUMPY:
        dataset = make(**arguments)
        if dataset.only_tf and backend != 'tf':
          raise ValueError(dataset.only_tf)
        return dataset._replace(read=BACKENDS[backend]())
      _check_tfds(name, backend, fields['backend'])
      source = make(**arguments)
    from selsync_jax.data.tfdata import prepared

    return prepared.open_source(source, directory)
  except ModuleNotFoundError as error:
    raise ConfigError(
      f"config.data.backend='tf': {error}; install it, or use 'numpy'"
    ) from error


def _backend(name: str) -> str:
  """Returns which backend reads; both make the same batches, bit for bit.

  So processes may choose differently where 'auto' finds different libraries.
  """
  if name == 'auto':
    return 'tf' if importlib.util.find_spec('tensorflow') else 'numpy'
  with config_errors('data.backend'):
    lookup({'auto': None} | BACKENDS, name)
  return name


def _check_tfds(name: str, backend: str, wanted: str) -> None:
  """Raises `ValueError` if the backend cannot read a data set of TFDS."""
  names = ', '.join(BY_NUMPY)
  if backend == wanted == 'numpy':
    raise ValueError(
      f"backend='numpy' reads {names}; {name!r} needs backend='tf'"
    )
  if backend == 'numpy':
    raise ValueError(
      f'without TensorFlow there are {names}; {name!r} needs TensorFlow, which '
      'is not installed'
    )


def assign(
  dataset: OpenDataset,
  fields: Mapping[str, Any],
  *,
  workers: int,
  batch_size: int,
  seed: int,
) -> Data:
  """Assigns the examples of an open data set to workers.

  A data set can be assigned again, for another number of workers, without
  reading it again. Arguments and errors are those of `open_data`.
  """
  info = dataset.info
  with config_errors('data.injection'):
    injection = make_injection(
      workers=workers, batch_size=batch_size, **fields['injection']
    )
    if injection and info.bytes_per_example is None:
      raise ValueError(
        f'examples of {info.name} stay on disk, so they cannot be injected'
      )
  with config_errors('data.partition'):
    partition = make_partition(
      fields['partition'],
      info.sizes['train'],
      workers,
      injection.own if injection else batch_size,
      seed,
      labels=info.labels,
      contiguous=info.order.contiguous,
      **{name: fields[name] for name in _PARTITION_FIELDS},
    )
  return dataset.assigned(
    Assignment(partition, info.order, injection, batch_size, seed)
  )


def check_directory(name: str | None) -> str | None:
  """Returns TFDS's data directory, with `~` expanded.

  A bare name is refused: it would be a folder wherever the command happens to
  run. So is one that does not exist: TFDS would make it.

  Args:
    name: `data.dir`; None is TFDS's own default.

  Raises:
    ConfigError: if it is empty, a bare name, or not there.
  """
  if name is None:
    return None
  if '://' in name:  # A bucket.
    return name
  try:
    path = pathlib.Path(name).expanduser()
    is_there = path.is_dir()
  except (RuntimeError, ValueError) as error:  # No such user; or a NUL.
    raise ConfigError(f'config.data.dir={name!r}: {error}') from error
  if not path.is_absolute() and name.split('/')[0] not in ('.', '..'):
    raise ConfigError(
      f'config.data.dir={name!r}: must be absolute, or begin with ~, ./ or ../'
    )
  if not is_there:
    raise ConfigError(f'config.data.dir={name!r}: there is no such folder')
  return str(path)
