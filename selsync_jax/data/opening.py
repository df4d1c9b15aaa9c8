"""Opens the data set that a config names."""

from collections.abc import Mapping
import dataclasses
import importlib
import importlib.util
from typing import Any, NamedTuple

from selsync_jax import config
from selsync_jax.data import checks
from selsync_jax.data.arrays import ArrayDataset
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.injection import make_injection
from selsync_jax.data.own import open_own
from selsync_jax.data.partitions import divided, PARTITIONS
from selsync_jax.data.protocol import Data, Dataset
from selsync_jax.data.sources import BY_NUMPY, BY_TFDS, DATASETS, LATE_IMPORTS

# The modules whose `read` is a `Read`. TensorFlow takes seconds to import.
BACKENDS = {
  'tf': 'selsync_jax.data.tfdata.pipelines',
  'numpy': 'selsync_jax.data.arrays',
}


class BoundData(NamedTuple):
  """The `data` of a config, checked; nothing is read yet."""

  name: str  # The data set's name.
  dataset: config.Bound  # Opens the data set.
  partition: config.Bound  # Divides its training examples.
  injection: Mapping[str, float]  # `alpha` and `beta`.
  backend: str  # A name in `BACKENDS`, or `auto`.
  directory: str | None  # TFDS's data directory; `None` is TFDS's default.


def bind_data(fields: Mapping[str, Any]) -> BoundData:
  """Binds the `data` of a config.

  These are `name`, a name in `DATASETS`, and the data set's own fields;
  `partition` and its own fields; `injection`, `backend` and `dir`.
  """
  given = config.set_fields(fields)
  for field in ('injection', 'backend', 'dir'):
    given.pop(field, None)
  own = set().union(*map(config.parameters, PARTITIONS.values()))
  divide = {k: given.pop(k) for k in ['partition', *own] if k in given}
  return BoundData(
    fields['name'],
    config.bind(DATASETS, given, 'data'),
    config.bind(PARTITIONS, divide, 'data', key='partition'),
    fields['injection'],
    fields['backend'],
    _check_directory(fields['dir']),
  )


def open_data(bound: BoundData, **run: int) -> Data:
  """Opens the `data` of a config, and assigns it to workers; see `assign`."""
  return assign(open_dataset(bound), bound, **run)


def open_dataset(bound: BoundData) -> Dataset:
  """Opens a data set, which can be assigned to any number of workers."""
  name = bound.name
  if DATASETS.is_own(name):
    return open_own(name, bound.dataset)
  backend = read_by(bound.backend)
  if backend == 'numpy' and name in BY_TFDS:
    names = ', '.join(BY_NUMPY)
    line = f'{name!r} needs TensorFlow; without it, choose from {names}'
    if bound.backend == 'numpy':
      line = f"{name!r} needs backend='tf'; backend='numpy' reads {names}"
    raise config.ConfigError(f'config.data: {line}')
  try:
    module = importlib.import_module(BACKENDS[backend])
    dataset = bound.dataset(directory=bound.directory, backend=backend)
  except ModuleNotFoundError as error:
    if not (error.name or '').startswith('tensorflow'):
      raise
    raise config.ConfigError(
      f"config.data.backend='tf': {error}; install it, or use 'numpy'"
    ) from error
  if isinstance(dataset, ArrayDataset):
    return dataclasses.replace(dataset, read=module.read)
  return dataset


def read_by(name: str) -> str:
  """Returns the library that a backend reads with, 'tf' or 'numpy'."""
  if name == 'auto':  # Processes may choose differently; batches are equal.
    return 'tf' if importlib.util.find_spec('tensorflow') else 'numpy'
  with config.config_errors('data.backend'):
    config.lookup({'auto': None} | BACKENDS, name)
  return name


def late_imports(name: str, backend: str) -> list[str]:
  """Returns the libraries that are imported only when the data are opened."""
  library = ['tensorflow'] if read_by(backend) == 'tf' else []
  return [*library, *LATE_IMPORTS.get(name, ())]


def assign(
  dataset: Dataset,
  bound: BoundData,
  workers: int,
  batch_size: int,
  seed: int,
) -> Data:
  """Assigns the examples of an open data set to workers.

  The seed determines the partition, the shuffles and the draws.
  """
  with config.config_errors('data.injection'):
    injection = make_injection(
      workers=workers, batch_size=batch_size, **bound.injection
    )
    if injection and dataset.bytes_per_example is None:
      raise ValueError(
        f'examples of {dataset.name} stay on disk, so they cannot be injected'
      )
  with config.config_errors('data.partition'):
    partition = divided(
      bound.partition,
      dataset.sizes['train'],
      workers,
      injection.own if injection else batch_size,
      seed,
      labels=dataset.labels,
      contiguous=dataset.order.contiguous,
    )
  return Data(
    dataset, Assignment(partition, dataset.order, injection, batch_size, seed)
  )


def _check_directory(name: str | None) -> str | None:
  """Returns TFDS's data directory, with `~` expanded, if it exists."""
  if name is None or '://' in name:  # TFDS's default, or a bucket.
    return name
  return str(checks.folder('dir', name))
