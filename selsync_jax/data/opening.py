"""Opens the data set that a config names."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import importlib.util
import pathlib
from typing import Any, NamedTuple

from selsync_jax.config import bind
from selsync_jax.config import Bound
from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError
from selsync_jax.config import lookup
from selsync_jax.config import set_fields
from selsync_jax.data import arrays
from selsync_jax.data.arrays import Read
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.injection import make_injection
from selsync_jax.data.own import open_own
from selsync_jax.data.partitions import bind_partition
from selsync_jax.data.partitions import divided
from selsync_jax.data.partitions import PARTITION_FIELDS
from selsync_jax.data.protocol import Data
from selsync_jax.data.protocol import OpenDataset
from selsync_jax.data.sources import BY_NUMPY
from selsync_jax.data.sources import DATASETS


@contextlib.contextmanager
def _tensorflow() -> Iterator[None]:
  """Converts the error of a library that is not installed."""
  try:
    yield
  except ModuleNotFoundError as error:
    raise ConfigError(
      f"config.data.backend='tf': {error}; install it, or use 'numpy'"
    ) from error


def _pipelines() -> Read:
  with _tensorflow():
    from selsync_jax.data.tfdata import pipelines  # Takes seconds to import.
  return pipelines.read


BACKENDS: dict[str, Callable[[], Read]] = {
  'tf': _pipelines,
  'numpy': lambda: arrays.read,
}


class BoundData(NamedTuple):
  """The `data` of a config, checked; nothing is read yet.

  Attributes:
    name: the data set's name.
    dataset: the function that opens the data set.
    partition: the function that divides its training examples.
    injection: `alpha` and `beta`.
    backend: a name in `BACKENDS`, or `auto`.
    directory: TFDS's data directory; `None` is TFDS's default.
  """

  name: str
  dataset: Bound
  partition: Bound
  injection: Mapping[str, float]
  backend: str
  directory: str | None


def bind_data(fields: Mapping[str, Any]) -> BoundData:
  """Binds the `data` of a config.

  Args:
    fields: `name`, a name in `DATASETS`, and the data set's own fields;
      `partition` and its own fields; `injection`, `backend` and `dir`.

  Raises:
    ConfigError: for the first field that is foreign, missing or out of range.
  """
  common = 'injection', 'backend', 'dir'
  divide = {'partition', *PARTITION_FIELDS}
  dataset = {
    field: value
    for field, value in set_fields(fields).items()
    if field not in common and field not in divide
  }
  return BoundData(
    fields['name'],
    bind(DATASETS, dataset, 'data'),
    bind_partition({k: v for k, v in fields.items() if k in divide}),
    fields['injection'],
    fields['backend'],
    check_directory(fields['dir']),
  )


def open_data(
  fields: Mapping[str, Any] | BoundData,
  *,
  workers: int,
  batch_size: int,
  seed: int,
) -> Data:
  """Opens a data set and assigns its examples to workers.

  Args:
    fields: the `data` of a config, or the result of `bind_data` for it.
    workers: the number of workers of the run.
    batch_size: the number of examples per worker and step.
    seed: the seed of the partition, of shuffles and of draws.

  Raises:
    ConfigError: for the first field whose value breaks its rule, or if there
      are no such data.
  """
  bound = _bound(fields)
  return assign(
    open_dataset(bound),
    bound,
    workers=workers,
    batch_size=batch_size,
    seed=seed,
  )


def _bound(fields: Mapping[str, Any] | BoundData) -> BoundData:
  return fields if isinstance(fields, BoundData) else bind_data(fields)


def open_dataset(fields: Mapping[str, Any] | BoundData) -> OpenDataset:
  """Opens a data set; arguments and errors are those of `open_data`."""
  bound = _bound(fields)
  name = bound.name
  if DATASETS.is_own(name):
    return open_own(name, bound.dataset)
  backend = _backend(bound.backend)
  if name not in BY_NUMPY:
    _check_tfds(name, backend, bound.backend)
    with _tensorflow():
      from selsync_jax.data.tfdata import prepared

      return prepared.open_source(bound.dataset(), bound.directory)
  dataset = bound.dataset()
  if dataset.only_tf and backend == 'numpy':
    raise ConfigError(f'config.data: {dataset.only_tf}')
  return dataset._replace(read=BACKENDS[backend]())


def _backend(name: str) -> str:
  """Returns the backend's name.

  With 'auto', processes may choose different backends: all make the same
  batches, bit for bit.
  """
  if name == 'auto':
    return 'tf' if importlib.util.find_spec('tensorflow') else 'numpy'
  with config_errors('data.backend'):
    lookup({'auto': None} | BACKENDS, name)
  return name


def _check_tfds(name: str, backend: str, wanted: str) -> None:
  """Raises `ConfigError` if the backend cannot read a data set of TFDS."""
  if backend != 'numpy':
    return
  names = ', '.join(BY_NUMPY)
  if wanted == 'numpy':
    line = f"backend='numpy' reads {names}; {name!r} needs backend='tf'"
  else:
    line = f'without TensorFlow there are {names}; {name!r} needs it'
  raise ConfigError(f'config.data: {line}')


def assign(
  dataset: OpenDataset,
  fields: Mapping[str, Any] | BoundData,
  *,
  workers: int,
  batch_size: int,
  seed: int,
) -> Data:
  """Assigns the examples of an open data set to workers.

  Arguments and errors are those of `open_data`. The same open data set can be
  assigned to different numbers of workers.
  """
  info, bound = dataset.info, _bound(fields)
  with config_errors('data.injection'):
    injection = make_injection(
      workers=workers, batch_size=batch_size, **bound.injection
    )
    if injection and info.bytes_per_example is None:
      raise ValueError(
        f'examples of {info.name} stay on disk, so they cannot be injected'
      )
  with config_errors('data.partition'):
    partition = divided(
      bound.partition,
      info.sizes['train'],
      workers,
      injection.own if injection else batch_size,
      seed,
      labels=info.labels,
      contiguous=info.order.contiguous,
    )
  return dataset.assigned(
    Assignment(partition, info.order, injection, batch_size, seed)
  )


def check_directory(name: str | None) -> str | None:
  """Returns TFDS's data directory, with `~` expanded.

  A bare name is rejected, as it would depend on the current folder; so is a
  folder that does not exist, as TFDS would make it.

  Args:
    name: `data.dir`; `None` is TFDS's default.

  Raises:
    ConfigError: if it is empty, a bare name, or does not exist.
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
