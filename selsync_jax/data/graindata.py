"""Data sets whose examples Grain reads, in threads, when a batch needs them.

An element of Grain's pipeline is the batch of a step, for all workers of this
process. So threads work on different steps, their number changes no batch, and
a resumed run reads nothing of the steps before.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import sys
import threading
from typing import Any, NamedTuple

from jaxtyping import Integer
import numpy as np

from selsync_jax.data import arrays, checks, protocol
from selsync_jax.data.assignment import Schedule

_BLOCK, _BLOCKS = 64, 8  # Steps in a block, and blocks in the cache.


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

  @property
  def labels(self):
    return self.train_labels

  def size(self, split):
    return len(self.splits[split].source)

  def rows(self, split, index):
    return self.splits[split].rows(index)

  def batches(self, split, schedule, transform):
    import grain

    rows = self.splits[split].rows
    steps = grain.MapDataset.source(_Steps(schedule))
    batches = steps.map(lambda slots: arrays.make_batch(rows, slots, transform))
    reader = iter(batches.to_iter_dataset(self.read_options))
    try:
      yield from reader
    finally:
      reader.close()


class _Steps:
  """The contents of single steps, computed in blocks; threads may share it."""

  def __init__(self, schedule: Schedule):
    self._schedule = schedule
    self._lock = threading.Lock()
    self._recent = functools.lru_cache(_BLOCKS)(self._block)

  def __len__(self) -> int:
    return max(0, self._schedule.stop - self._schedule.start)

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    with self._lock:
      block = self._recent(index // _BLOCK)
    return {name: array[index % _BLOCK] for name, array in block.items()}

  def _block(self, number: int) -> arrays.Block:
    first = self._schedule.start + number * _BLOCK
    steps = np.arange(first, min(first + _BLOCK, self._schedule.stop))
    return self._schedule.block(steps)
