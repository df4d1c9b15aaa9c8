"""The checks of users' arrays and functions: one line for each mistake."""

from collections.abc import Callable, Mapping
import importlib
import pathlib
from typing import Any

import numpy as np

from selsync_jax.config import ConfigError
from selsync_jax.data import arrays, protocol

_INT32 = np.iinfo(np.int32)


def library(name: str, extra: str) -> Any:
  """Imports a library when it is first used: importing takes a second."""
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    raise ConfigError(
      f"config.data: {error}; pip install 'selsync-jax[{extra}]'"
    ) from error


def folder(field: str, name: str) -> pathlib.Path:
  """Returns a folder that `config.data.FIELD` names, with `~` expanded."""
  where = f'config.data.{field}={name!r}'
  try:
    path = pathlib.Path(name).expanduser()
    is_there = path.is_dir()
  except (RuntimeError, ValueError) as error:  # No such user; or a NUL.
    raise ConfigError(f'{where}: {error}') from error
  # A bare name would depend on the current folder.
  if not path.is_absolute() and name.split('/')[0] not in ('.', '..'):
    raise ConfigError(f'{where}: must be absolute, or begin with ~, ./ or ../')
  if not is_there:
    raise ConfigError(f'{where}: there is no such folder')
  return path


def checked(
  name: str, given: protocol.Examples, num_classes: int
) -> protocol.Examples:
  """Returns arrays in JAX's dtypes; checks their lengths and labels."""
  checked = {key: _narrow(name, key, array) for key, array in given.items()}
  lengths = {len(array) if array.ndim else 0 for array in checked.values()}
  if not checked:
    raise ValueError(f'{name} has no arrays')
  if 'mask' in checked:
    raise ValueError(
      f'{name} has an array mask; choose another name, or loss_mask if it '
      'leaves tokens out of the loss'
    )
  if len(lengths) != 1 or 0 in lengths:
    shapes = ', '.join(f'{key} {x.shape}' for key, x in checked.items())
    raise ValueError(
      f'{name} has {shapes}: must be arrays of one length above 0'
    )
  if (label := checked.get('label')) is not None:
    is_whole = label.ndim == 1 and label.dtype.kind in 'iu'
    if not is_whole or label.min() < 0 or label.max() >= num_classes:
      raise ValueError(
        f'{name}: label must be whole numbers [examples] below '
        f'num_classes={num_classes}, got {label.dtype} {label.shape} from '
        f'{label.min()} to {label.max()}'
      )
  return checked


def _narrow(split: str, name: str, array: Any) -> np.ndarray:
  """Returns the array, with 32 bits in place of 64 as in JAX."""
  array = np.asanyarray(array)
  kind, wide = array.dtype.kind, array.dtype.itemsize == 8
  if kind not in 'biufV' or array.dtype.hasobject or array.dtype.names:
    raise ValueError(f'{split}: {name} has dtype {array.dtype}; use numbers')
  if kind == 'f' and wide:
    return array.astype(np.float32)
  if kind in 'iu' and wide:
    ends = (array.min(), array.max()) if array.size else ()
    if any(not _INT32.min <= end <= _INT32.max for end in ends):
      raise ValueError(f'{split}: {name} has numbers beyond 32 bits')
    return array.astype(np.int32)
  return array


def check_alike(name: str, split: protocol.Examples, train: str) -> None:
  """Raises `ValueError` unless the arrays have the forms of `train`."""
  if (form := arrays.forms(split)) != train:
    raise ValueError(
      f'{name} has {form}, but train has {train}; they must be equal'
    )


def transforms(
  transform: protocol.Transform,
  augment: protocol.KeyedTransform | None,
  num_classes: int,
) -> tuple[protocol.Transform, protocol.KeyedTransform | None]:
  """Returns `transform` and `train` of a data set from a user's functions."""
  if transform is not protocol.unchanged:
    transform = _checking('transform', transform, num_classes)
  if not augment:
    return transform, None
  augment = _checking('augment', augment, num_classes)
  return transform, lambda examples, key: augment(transform(examples), key)


def _checking(
  name: str, function: Callable[..., Any], num_classes: int
) -> Callable[..., protocol.Examples]:
  """Returns a user's function, wrapped in checks of the batches it returns."""
  first = ''

  def call(examples: protocol.Examples, *key: Any) -> protocol.Examples:
    nonlocal first
    given, batch = arrays.count(examples), function(examples, *key)
    if not isinstance(batch, Mapping):
      kind = type(batch).__name__
      raise ValueError(f'{name} must return a dict, got a {kind}')
    batch = checked(name, batch, num_classes)
    forms = arrays.forms(batch)
    first = first or forms
    if forms != first:
      raise ValueError(f'{name} returned {forms}, but at first {first}')
    if (made := arrays.count(batch)) != given:
      raise ValueError(f'{name} returned {made} examples for {given}')
    return batch

  return call
