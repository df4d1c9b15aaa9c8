"""Your own data sets: from NumPy, tf.data, TFDS or Hugging Face.

The functions `from_*` hold the examples in memory, or in arrays that NumPy maps
from disk.
"""

from collections.abc import Callable, Mapping
import importlib
import os
from typing import Any

import numpy as np

from selsync_jax.config import ConfigError
from selsync_jax.data import arrays
from selsync_jax.data.order import ShuffledChunk
from selsync_jax.data.sources import DATASETS

_INT32 = np.iinfo(np.int32)
_Make = Callable[..., arrays.ArrayDataset]


def register_dataset(make: _Make) -> _Make:
  """Registers a data set under the function's own name.

  Use it as a decorator of a function that returns `from_arrays(...)`, or the
  result of another function `from_*`. Its keyword-only arguments are fields of
  `config.data`.

  Raises:
    ConfigError: if another data set has this name.
  """
  return DATASETS.register(make)


def open_own(name: str, make: Callable[[], Any]) -> arrays.ArrayDataset:
  """Calls the function of a user's data set, and its functions once."""
  with DATASETS.errors(name, 'data'):
    dataset = make()
    if not isinstance(dataset, arrays.ArrayDataset):
      raise ConfigError(
        f'config.data.name={name!r}: must return data.from_arrays(...) or '
        f'another of data.from_*, got a {type(dataset).__name__}'
      )

    def one():  # A copy: the functions may work in place.
      return {k: v[:1].copy() for k, v in dataset.splits['train'].items()}

    dataset.transform(one())  # So that it fails early.
    if dataset.train:
      dataset.train(one(), np.zeros(1, np.uint64))
  return dataset._replace(name=name)


def _checking(
  name: str, function: Callable[..., Any], num_classes: int
) -> Callable[..., arrays.Examples]:
  """Returns a user's function, whose batches must be alike, and as given."""
  first = ''

  def call(examples: arrays.Examples, *key: Any) -> arrays.Examples:
    nonlocal first
    given, batch = arrays.count(examples), function(examples, *key)
    if not isinstance(batch, Mapping):
      kind = type(batch).__name__
      raise ValueError(f'{name} must return a dict, got a {kind}')
    batch = _checked(name, batch, num_classes)
    forms = arrays.forms(batch)
    first = first or forms
    if forms != first:
      raise ValueError(f'{name} returned {forms}, and at first {first}')
    if (made := arrays.count(batch)) != given:
      raise ValueError(f'{name} made {made} examples of {given}')
    return batch

  return call


def from_arrays(
  *,
  train: arrays.Examples,
  validation: arrays.Examples,
  test: arrays.Examples,
  task: str,
  num_classes: int,
  transform: arrays.Transform = arrays.unchanged,
  augment: arrays.KeyedTransform | None = None,
) -> arrays.ArrayDataset:
  """Returns a data set of NumPy arrays.

  Args:
    train: the training split, arrays [examples, ...] by name. A task reads some
      of them: classification `image` and `label`, language modeling `inputs`
      and `targets`, regression `features` and `target`.
    validation: the validation split, likewise; all choices are made by it.
    test: the test split, likewise; it is scored once, at the end.
    task: a name in `tasks.TASKS`.
    num_classes: the number of a model's outputs per example or token: the
      number of labels, the size of the vocabulary, 1 for regression.
    transform: `transform(examples)`, from stored examples to a batch.
    augment: `augment(batch, key)`, applied to training batches after
      `transform`. The key, uint64, has 64 random bits for each example; a
      resumed run repeats them.

  Raises:
    ValueError: if a split is empty, or the splits do not match.
  """
  given = {'train': train, 'validation': validation, 'test': test}
  splits = {k: _checked(k, split, num_classes) for k, split in given.items()}
  forms = {name: arrays.forms(split) for name, split in splits.items()}
  for name, form in forms.items():
    if form != forms['train']:
      raise ValueError(
        f'{name} has {form}, and train has {forms["train"]}; they must be equal'
      )

  if transform is not arrays.unchanged:
    transform = _checking('transform', transform, num_classes)
  if augment:
    augment = _checking('augment', augment, num_classes)

  def augmented(examples, key):
    assert augment
    return augment(transform(examples), key)

  return arrays.ArrayDataset(
    '',
    task,
    num_classes,
    ShuffledChunk(),
    splits,
    transform,
    train=augmented if augment else None,
  )


def from_tf(read: Callable[[str], Any], **options: Any) -> arrays.ArrayDataset:
  """Returns a data set that a `tf.data` pipeline reads, once, into memory.

  Args:
    read: `read(split)`, which returns a `tf.data.Dataset` of single examples,
      each a dict; the splits are `train`, `validation` and `test`.
    **options: other arguments of `from_arrays`.
  """
  from selsync_jax.data.tfdata import prepared  # Imports TensorFlow.

  return _from_splits(lambda split: prepared.read_all(read(split)), options)


def from_tfds(
  name: str,
  splits: Mapping[str, str],
  *,
  columns: Mapping[str, str] | None = None,
  data_dir: str | None = None,
  **options: Any,
) -> arrays.ArrayDataset:
  """Returns a data set that TFDS has prepared.

  Args:
    name: TFDS's name, `mnist` or `my_dataset/config:1.0.0` for example.
    splits: TFDS's name for each of `train`, `validation` and `test`, such as
      `train[:90%]`.
    columns: the data set's own names, by name in a batch; by default all.
    data_dir: TFDS's data directory; `None` is TFDS's default.
    **options: other arguments of `from_arrays`.

  Raises:
    ConfigError: if the data are not prepared, saying how to get them.
  """
  from selsync_jax.data.tfdata import prepared  # Imports TensorFlow.

  def read(split):
    return prepared.read_split(name, splits[split], data_dir)

  return _from_splits(read, options, columns)


def from_huggingface(
  source: str | os.PathLike[str] | Mapping[str, Any],
  *,
  columns: Mapping[str, str] | None = None,
  **options: Any,
) -> arrays.ArrayDataset:
  """Returns a data set of Hugging Face's `datasets`, the extra `huggingface`.

  Args:
    source: a folder that `DatasetDict.save_to_disk` wrote, with the splits
      `train`, `validation` and `test`; or a mapping from these to data sets.
    columns: the data set's own names, by name in a batch; by default all.
    **options: other arguments of `from_arrays`.

  Raises:
    ConfigError: if `datasets` is not installed.
    ValueError: if a split or a value is missing.
  """
  try:
    datasets = importlib.import_module('datasets')  # Takes a second.
  except ModuleNotFoundError as error:
    raise ConfigError(
      f"config.data: {error}; pip install 'selsync-jax[huggingface]'"
    ) from error
  if not isinstance(source, Mapping):
    source = datasets.load_from_disk(os.fspath(source))
  if missing := [split for split in arrays.SPLITS if split not in source]:
    raise ValueError(f'it has no {", ".join(missing)}, but {", ".join(source)}')

  def read(split):
    rows = source[split]
    table = rows.with_format('arrow')[:]
    for name in columns.values() if columns else rows.column_names:
      if missing := table.column(name).null_count:
        raise ValueError(f'{split}: {name} lacks {missing} of its values')
    return rows.with_format('numpy')[:]

  return _from_splits(read, options, columns)


def _from_splits(
  read: Callable[[str], arrays.Examples],
  options: Mapping[str, Any],
  columns: Mapping[str, str] | None = None,
) -> arrays.ArrayDataset:
  """Returns a data set of the arrays that `read` returns for each split."""
  splits: dict[str, Any] = {}
  for split in arrays.SPLITS:
    every = read(split)
    names = columns or {name: name for name in every}
    splits[split] = {name: every[names[name]] for name in names}
  return from_arrays(**splits, **options)


def _checked(
  name: str, given: arrays.Examples, num_classes: int
) -> arrays.Examples:
  """Returns arrays of JAX's types; checks their lengths, and their labels."""
  checked = {key: _narrow(name, key, array) for key, array in given.items()}
  lengths = {len(array) if array.ndim else 0 for array in checked.values()}
  if not checked:
    raise ValueError(f'{name} has no arrays')
  if 'mask' in checked:
    raise ValueError(f'{name} has an array mask; choose another name')
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
