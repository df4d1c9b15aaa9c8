"""Data sets whose examples Grain reads when a batch needs them."""

from collections.abc import Callable, Mapping
import dataclasses
import sys
from typing import Any, NamedTuple

from jaxtyping import Integer
import numpy as np

from selsync_jax.data import arrays, checks, grain_pipeline, protocol
from selsync_jax.data.sources import DATASETS


def from_grain(
  *,
  train: Any,
  validation: Any,
  test: Any,
  task: str,
  num_classes: int,
  columns: Mapping[str, str] | None = None,
  labels: Any = None,
  transform: protocol.Transform = protocol.unchanged,
  augment: protocol.KeyedTransform | None = None,
  read_options: Any = None,
  multiprocessing_options: Any = None,
  prepare: protocol.Prepare = protocol.unchanged,
) -> 'GrainDataset':
  """Returns a data set that Grain reads. Needs the extra `grain`.

  Its batches equal the batches of `from_arrays` with the same examples, but an
  example is read only when a batch needs it.

  Args:
    train: the training split, a `grain.MapDataset` of single examples, each a
      dict. An element must be the same whenever it is read: a `random_map`
      draws by the index alone, so its result is the same in every epoch.
    validation: the validation split, likewise; used for all choices.
    test: the test split, likewise; it is scored once, at the end.
    task: see `from_arrays`.
    num_classes: see `from_arrays`.
    columns: the elements' name for each name in a batch; by default all.
    labels: the labels of all training examples, whole numbers [examples];
      needed by partitions by label.
    transform: see `from_arrays`.
    augment: see `from_arrays`; it draws again in every epoch.
    read_options: a `grain.ReadOptions`; its buffer counts steps. By default 16
      threads read 16 steps ahead.
    multiprocessing_options: a `grain.MultiprocessingOptions`, whose processes
      read and transform; by default this process does.
    prepare: see `from_arrays`.

  Raises:
    ConfigError: if Grain is not installed.
    ValueError: if a split is empty or infinite, lacks elements, or changes when
      it is read again, or if the splits do not match.
  """
  grain = checks.library('grain', 'grain')
  expected = ''

  def check(name, stored):
    nonlocal expected
    stored = checks.checked(name, stored, num_classes)
    expected = expected or arrays.forms(stored)
    checks.check_alike(name, stored, expected)
    return stored

  splits: dict[str, Split] = {}
  given = {'train': train, 'validation': validation, 'test': test}
  for name, source in given.items():
    if not isinstance(source, grain.MapDataset):
      kind = type(source).__name__
      raise ValueError(f'{name} must be a grain.MapDataset, got a {kind}')
    if not 0 < len(source) < sys.maxsize:
      found = 'no end; leave out repeat()' if len(source) else 'no elements'
      raise ValueError(f'{name} has {found}')
    splits[name] = split = Split(name, source, columns or {}, check)
    some = arrays.sample(len(source), 8)
    if len({arrays.checksum(split.rows(some)) for _ in range(2)}) > 1:
      raise ValueError(
        f'{name} has elements that change when they are read again; give every '
        'random transform a seed, as in random_map(..., seed=0)'
      )
  if labels is not None:
    labels = checks.checked('labels', {'label': labels}, num_classes)['label']
    if len(labels) != len(train):
      raise ValueError(
        f'labels has {len(labels)} labels for {len(train)} training examples'
      )
  return GrainDataset(
    '',
    task,
    num_classes,
    splits,
    *checks.transforms(transform, augment, num_classes),
    prepare,
    train_labels=labels,
    read_options=read_options or grain.ReadOptions(16, 16),
    multiprocessing_options=multiprocessing_options,
  )


class Split(NamedTuple):
  """A split, whose elements are read one by one."""

  name: str
  source: Any  # A `grain.MapDataset` of single examples.
  columns: Mapping[str, str]  # See `from_grain`; empty for all.
  check: Callable[[str, protocol.Examples], protocol.Examples]

  def rows(self, index: np.ndarray) -> protocol.Examples:
    """Returns the elements with some indices."""
    elements = [self._element(i) for i in index.tolist()]
    stacked = {}
    columns = self.columns or {name: name for name in elements[0]}
    for name, column in columns.items():
      values = [np.asarray(element.get(column)) for element in elements]
      shapes = dict.fromkeys(value.shape for value in values)
      if len(shapes) > 1:
        raise ValueError(f'{self.name}: {name} has shapes {[*shapes]}')
      stacked[name] = np.stack(values)
    return self.check(self.name, stacked)

  def _element(self, index: int) -> Any:
    element = self.source[index]
    if element is None:
      raise ValueError(f'{self.name} lacks element {index}; leave out filter()')
    if not isinstance(element, Mapping):
      kind = type(element).__name__
      raise ValueError(f'{self.name} must have dicts as elements, got a {kind}')
    return element


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class GrainDataset(arrays.IndexedDataset):
  """A data set that Grain reads, whose splits are each a `Split`."""

  train_labels: Integer[np.ndarray, 'examples'] | None
  read_options: Any  # A `grain.ReadOptions`.
  multiprocessing_options: Any  # A `grain.MultiprocessingOptions`.

  @property
  def labels(self):
    return self.train_labels

  def size(self, split):
    return len(self.splits[split].source)

  def rows(self, split, index):
    return self.splits[split].rows(index)

  def batches(self, split, schedule, transform):
    rows = self.splits[split].rows
    # Evaluations would be over before processes had started.
    options = self.multiprocessing_options if split == 'train' else None
    return grain_pipeline.read(
      lambda slots: arrays.make_batch(rows, slots, transform),
      schedule,
      self.read_options,
      options,
      DATASETS.get(self.name),
    )
