"""Your own data sets: from NumPy, tf.data, TFDS, Hugging Face or Grain.

The functions `from_*` hold the examples in memory, or in arrays that NumPy maps
from disk. Grain reads examples when a batch needs them.
"""

from collections.abc import Callable, Mapping
import dataclasses
import os
import typing
from typing import Any

import numpy as np

from selsync_jax.config import config_errors, ConfigError
from selsync_jax.data import arrays, checks, ids, protocol
from selsync_jax.data.sources import DATASETS

_Make = Callable[..., arrays.IndexedDataset]


def register_dataset(make: _Make) -> _Make:
  """Registers a data set under the function's name.

  Use it as a decorator of a function that returns `from_arrays(...)`, or the
  result of another function `from_*`. Its keyword-only arguments are fields of
  `config.data`.

  Raises:
    ConfigError: if another data set has this name.
  """
  return DATASETS.register(make)


def open_own(name: str, make: Callable[[], Any]) -> arrays.IndexedDataset:
  """Opens a user's data set, and calls its transforms once."""
  with DATASETS.errors(name, 'data'):
    dataset = make()
    if not isinstance(dataset, arrays.IndexedDataset):
      raise ConfigError(
        f'config.data.name={name!r}: must return data.from_arrays(...) or '
        f'another of data.from_*, got a {type(dataset).__name__}'
      )

    def one():  # A copy: the functions may work in place.
      return dataset.rows('train', np.zeros(1, np.int64))

    dataset.transform(one())  # So that it fails early.
    if dataset.train:
      dataset.train(one(), np.zeros(1, np.uint64))
  return dataclasses.replace(dataset, name=name)


def checked(data: protocol.Data, check: ids.Check) -> protocol.Data:
  """Checks some of a user's examples; returns data that check every batch."""
  if check.inputs or check.targets:
    dataset = typing.cast(arrays.IndexedDataset, data.dataset)
    for split in dataset.splits:
      for batch in dataset.trial(split):
        with config_errors(f'data: {split}'):
          check(batch)
  return dataclasses.replace(data, inspect=check)


def from_arrays(
  *,
  train: protocol.Examples,
  validation: protocol.Examples,
  test: protocol.Examples,
  task: str,
  num_classes: int,
  transform: protocol.Transform = protocol.unchanged,
  augment: protocol.KeyedTransform | None = None,
  prepare: protocol.Prepare = protocol.unchanged,
) -> arrays.ArrayDataset:
  """Returns a data set of NumPy arrays.

  Args:
    train: the training split, arrays [examples, ...] by name. A task reads some
      of them: classification `image` and `label`, language modeling `inputs`
      and `targets`, regression `features` and `target`.
    validation: the validation split, likewise; used for all choices.
    test: the test split, likewise; it is scored once, at the end.
    task: a name in `tasks.TASKS`.
    num_classes: the number of a model's outputs per example or token: the
      number of labels, the size of the vocabulary, 1 for regression.
    transform: `transform(examples)`, from stored examples to a batch.
    augment: `augment(batch, key)`, applied to training batches after
      `transform`. The key, uint64, has 64 random bits for each example; a
      resumed run repeats them.
    prepare: `prepare(inputs)`, from a task's input in a batch, such as `image`,
      to the model's input. It runs on the device, so images can travel there as
      bytes. It may use only operators.

  Raises:
    ValueError: if a split is empty, or the splits do not match.
  """
  given = {'train': train, 'validation': validation, 'test': test}
  splits = {
    k: checks.checked(k, split, num_classes) for k, split in given.items()
  }
  for name, split in splits.items():
    checks.check_alike(name, split, arrays.forms(splits['train']))
  return arrays.ArrayDataset(
    '',
    task,
    num_classes,
    splits,
    *checks.transforms(transform, augment, num_classes),
    prepare,
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
    columns: the data set's name for each name in a batch; by default all.
    data_dir: TFDS's data directory; `None` is TFDS's default.
    **options: other arguments of `from_arrays`.

  Raises:
    ConfigError: if the data are not prepared, saying how to get them.
  """
  from selsync_jax.data.tfdata import prepared  # Imports TensorFlow.

  builder = prepared.open_builder(name, splits['train'], data_dir)

  def read(split):
    return prepared.read_all(prepared.rows(builder, splits[split]))

  return _from_splits(read, options, columns)


def from_huggingface(
  source: str | os.PathLike[str] | Mapping[str, Any],
  *,
  columns: Mapping[str, str] | None = None,
  **options: Any,
) -> arrays.ArrayDataset:
  """Returns a Hugging Face data set. Needs the extra `huggingface`.

  Args:
    source: a folder that `DatasetDict.save_to_disk` wrote, with the splits
      `train`, `validation` and `test`; or a mapping from these to data sets.
    columns: the data set's name for each name in a batch; by default all.
    **options: other arguments of `from_arrays`.

  Raises:
    ConfigError: if `datasets` is not installed.
    ValueError: if a split or a value is missing.
  """
  datasets = checks.library('datasets', 'huggingface')
  if not isinstance(source, Mapping):
    source = datasets.load_from_disk(os.fspath(source))
  if missing := [split for split in protocol.SPLITS if split not in source]:
    raise ValueError(
      f'it has no {", ".join(missing)}; it has {", ".join(source)}'
    )

  def read(split):
    rows = source[split]
    table = rows.with_format('arrow')[:]
    for name in columns.values() if columns else rows.column_names:
      if missing := table.column(name).null_count:
        raise ValueError(f'{split}: {name} lacks {missing} of its values')
    return rows.with_format('numpy')[:]

  return _from_splits(read, options, columns)


def _from_splits(
  read: Callable[[str], protocol.Examples],
  options: Mapping[str, Any],
  columns: Mapping[str, str] | None = None,
) -> arrays.ArrayDataset:
  """Returns a data set of the arrays that `read` returns for each split."""
  splits: dict[str, Any] = {}
  for split in protocol.SPLITS:
    every = read(split)
    names = columns or {name: name for name in every}
    splits[split] = {name: every[names[name]] for name in names}
  return from_arrays(**splits, **options)
