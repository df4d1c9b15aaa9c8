"""Opens the data set that a config names."""

from collections.abc import Callable, Mapping
import pathlib
from typing import Any

from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError
from selsync_jax.config import lookup
from selsync_jax.data import sources
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.fields import OWN
from selsync_jax.data.fields import SOURCE_FIELDS
from selsync_jax.data.injection import make_injection
from selsync_jax.data.own import open_own
from selsync_jax.data.partitioned import OpenDataset
from selsync_jax.data.partitions import make_partition
from selsync_jax.data.protocol import Data


def _open_with_tensorflow(
  name: str, directory: str | None, **fields: Any
) -> OpenDataset:
  try:
    # Takes seconds to import, and need not be installed.
    from selsync_jax.data.tfdata import opening
  except ModuleNotFoundError as error:
    raise ConfigError(
      f"config.data.backend='tf': {error}; install it, or use 'numpy'"
    ) from error
  return opening.open_dataset(name, directory, **fields)


def _open_with_numpy(
  name: str, directory: str | None, **fields: Any
) -> OpenDataset:
  del directory
  with config_errors('data'):
    return sources.open_dataset(name, **fields)


BACKENDS: dict[str, Callable[..., OpenDataset]] = {
  'tf': _open_with_tensorflow,
  'numpy': _open_with_numpy,
}
_PARTITION_FIELDS = ('labels_per_worker', 'dirichlet_alpha')


def open_data(
  fields: Mapping[str, Any], *, workers: int, batch_size: int, seed: int
) -> Data:
  """Opens a data set and assigns its examples to workers.

  Args:
    fields: `data` of the config; see configs/base.py.
    workers: number of workers of the run.
    batch_size: examples per worker and step.
    seed: of the partition, of shuffles and of draws.

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
  if fields['name'] in OWN:
    with config_errors('data'):
      return open_own(fields)
  with config_errors('data.backend'):
    open_with = lookup(BACKENDS, fields['backend'])
  return open_with(
    fields['name'],
    check_directory(fields['dir']),
    **{name: fields[name] for name in SOURCE_FIELDS},
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
