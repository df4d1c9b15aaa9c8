"""Grain reads the examples that the index arithmetic names, and no others."""

import collections
import sys
import threading

import grain
import numpy as np
import pytest

from selsync_jax.config import ConfigError
from selsync_jax.data import from_arrays, from_grain
from selsync_jax.data.index_shuffle import IndexShuffle
from tests.support import batches
from tests.support.lines import raises

WORKERS, BATCH = 4, 6
SIZES = {'train': 350, 'validation': 41, 'test': 7}
PARTITIONS = {
  'seldp': {},
  'defdp': {},
  'by_label': dict(labels_per_worker=5),
  'dirichlet, injected': dict(
    dirichlet_alpha=10.0, injection=dict(alpha=0.5, beta=0.5)
  ),
}


def arrays_of(split):
  rng = np.random.default_rng(SIZES[split])
  image = rng.integers(0, 256, (SIZES[split], 3, 2), np.uint8)
  return {'image': image, 'label': np.arange(SIZES[split]) % 10}


class Rows:
  """Single examples; counts the examples that were read."""

  def __init__(self, arrays):
    self.arrays, self.read = arrays, collections.Counter()

  def __len__(self):
    return len(self.arrays['label'])

  def __getitem__(self, index):
    self.read[index] += 1
    return {name: array[index] for name, array in self.arrays.items()}


def scaled(batch):
  return batch | {'image': batch['image'] / np.float32(255)}


def mirrored(batch, key):
  flip = (key % 2 == 1)[:, None, None]
  return batch | {'image': np.where(flip, batch['image'][:, ::-1], 0)}


def by_grain(change=lambda dataset: dataset, **options):
  splits = {
    split: change(grain.MapDataset.source(Rows(arrays_of(split))))
    for split in SIZES
  }
  common = dict(task='classification', num_classes=10)
  return from_grain(**splits | common | options)


def assigned(dataset, partition='seldp', **fields):
  name = partition.split(',')[0]
  return batches.assigned(dataset, WORKERS, BATCH, 3, partition=name, **fields)


def stored(dataset):
  return dataset.map(lambda e: {'x': e['image'], 'y': e['label'], 'z': 'text'})


@pytest.mark.parametrize('partition', PARTITIONS)
def test_batches_equal_batches_of_the_same_examples_in_memory(partition):
  functions = dict(transform=scaled, augment=mirrored)
  own = dict(
    columns={'image': 'x', 'label': 'y'}, labels=arrays_of('train')['label']
  )
  data, memory = (
    assigned(dataset, partition, **PARTITIONS[partition])
    for dataset in (
      by_grain(stored, **own, **functions),
      from_arrays(
        **{split: arrays_of(split) for split in SIZES},
        **dict(task='classification', num_classes=10, **functions),
      ),
    )
  )
  for where in ((range(WORKERS), 0, 150), ([1, 3], 99_990, 100_010)):
    batches.assert_equal(data.batches(*where), memory.batches(*where))
  for split in SIZES:
    for workers in ([0, 1], [2]):  # Two processes, three workers.
      batches.assert_equal(
        data.evaluation(split, 5, workers, 3),
        memory.evaluation(split, 5, workers, 3),
      )
  assert data.fingerprint == memory.fingerprint
  assert data.facts == memory.facts
  assert data.injected_bytes_per_step == memory.injected_bytes_per_step


def test_a_resumed_run_reads_nothing_of_the_steps_before():
  dataset = by_grain()
  rows = dataset.splits['train'].source._source
  data = assigned(dataset)
  rows.read.clear()
  assert data.injected_bytes_per_step == 0
  list(data.batches([0, 2], 1000, 1003))
  slots = data.assignment.slots([0, 2], np.arange(1000, 1003), IndexShuffle())
  assert rows.read == collections.Counter(slots.index.ravel().tolist())
  assert not [*data.batches([0, 2], 1000, 900)]  # The run is shorter now.


def test_threads_that_read_ahead_end_with_the_batches():
  before = set(threading.enumerate())
  endless = assigned(by_grain()).batches(range(WORKERS), 0, 2**31 - 1)
  next(endless)
  reading = set(threading.enumerate()) - before
  assert reading
  endless.close()
  for thread in reading:
    thread.join(10)
    assert not thread.is_alive()


def noisy(element, rng):
  return element | {'image': element['image'] + rng.normal()}


def random(dataset):
  return dataset.seed(5).shuffle().random_map(noisy)


def test_random_choices_in_grain_depend_only_on_the_index():
  """It does not depend on threads, on workers, or on earlier reads."""
  whole = assigned(by_grain(random)).batches(range(WORKERS), 0, 60)
  alone = grain.ReadOptions(num_threads=0)
  data = assigned(by_grain(random, read_options=alone))
  late = data.batches([1, 3], 40, 60)
  for batch, again in zip(list(whole)[40:], late, strict=True):
    for name in batch:
      np.testing.assert_array_equal(batch[name][[1, 3]], again[name])


@pytest.mark.parametrize(
  'change, line',
  [
    (lambda d: d.repeat(), 'train has no end; leave out repeat()'),
    (lambda d: d[:0], 'train has no elements'),
    (
      lambda d: d.filter(lambda e: e['label'] != 0),
      'train lacks element 0; leave out filter()',
    ),
    (
      lambda d: d.map(lambda e: e['label']),
      'train must have dicts as elements, got a int64',
    ),
    (
      lambda d: d.map(lambda e: {'image': e['image'][: 1 + e['label'] % 2]}),
      'train: image has shapes [(1, 2), (2, 2)]',
    ),
    (
      lambda d: d.map(lambda e: e | {'label': str(e['label'])}),
      'train: label has dtype <U1; use numbers',
    ),
    (
      lambda d: d.map(lambda e: e | {'label': e['label'] + 1}),
      'train: label must be whole numbers [examples] below num_classes=10, got '
      'int32 (8,) from 1 to 10',
    ),
    (
      lambda d: d.map(lambda e: e | {'image': np.random.normal()}),
      'train has elements that change when they are read again; give every '
      'random transform a seed, as in random_map(..., seed=0)',
    ),
    (lambda d: d.to_iter_dataset(), 'train must be a grain.MapDataset, got a '),
  ],
)
def test_data_that_cannot_be_read_by_index_is_refused(change, line):
  with raises(ValueError, f'{line}...'):
    by_grain(change)


def test_labels_are_those_of_all_training_examples():
  with pytest.raises(ValueError, match='labels has 3 labels for 350 training'):
    by_grain(labels=np.arange(3))


def test_other_labels_are_other_data():
  labels = arrays_of('train')['label']
  other = labels.copy()
  other[[1, 2]] = labels[[2, 1]]
  one, same, changed = (
    assigned(by_grain(labels=each)).fingerprint
    for each in (labels, labels.copy(), other)
  )
  assert one == same and one != changed


def test_without_grain_the_line_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, 'grain', None)
  with pytest.raises(ConfigError, match=r"pip install 'selsync-jax\[grain\]'$"):
    by_grain()
