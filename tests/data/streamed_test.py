"""Streamed data holds the same examples as data in memory."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from selsync_jax.config import ConfigError
from selsync_jax.data import Data, draws
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.order import Shuffled
from selsync_jax.data.sources import imagenet2012
from selsync_jax.data.tfdata.streamed import Shards
from tests.support.partitions import make_partition

WORKERS, BATCH, BLOCK, SEED = 3, 8, 10, 5


@pytest.fixture(scope='module')
def dataset(archives_dir):
  return imagenet2012(archives_dir, image_size=16, window=BLOCK)


@pytest.fixture(scope='module')
def shards(dataset):
  return dataset.splits['train']


def assign(shards, name='seldp'):
  partition = make_partition(
    name, shards.examples, WORKERS, BATCH, 0, contiguous=True
  )
  return Assignment(partition, Shuffled(BLOCK), None, BATCH, SEED)


def reader(dataset, decode=None):
  """The data of a run, whose examples are decoded otherwise."""
  dataset = dataclasses.replace(dataset, train=decode or dataset.train)
  return Data(dataset, assign(dataset.splits['train']))


@pytest.mark.parametrize(
  'name, workers, start',
  [
    ('seldp', range(WORKERS), 0),
    pytest.param('seldp', [1, 2], 7, marks=pytest.mark.slow),
    pytest.param('defdp', range(WORKERS), 0, marks=pytest.mark.slow),
  ],
)
def test_a_batch_holds_its_assigned_examples_augmented_by_their_keys(
  name, workers, start, dataset, shards
):
  assignment = assign(shards, name)
  stop = 11  # After an epoch, which has nine.
  batches = Data(dataset, assignment).batches(workers, start, stop)
  files = list(shards.read(0, shards.examples))
  for step, batch in zip(range(start, stop), batches, strict=True):
    (slots,) = assignment.schedule(workers, step, step + 1).blocks()
    slots = slots._replace(**{k: v[0] for k, v in slots._asdict().items()})
    np.testing.assert_array_equal(batch['mask'], slots.mask)
    for slot in np.argwhere(batch['mask'])[::7]:
      index, epoch = slots.index[tuple(slot)], slots.epoch[tuple(slot)]
      key = tf.constant(draws.bits(SEED, epoch, index))
      expected = dataset.train(files[index], key)
      for field, value in expected.items():
        np.testing.assert_allclose(batch[field][tuple(slot)], value, atol=1e-5)


def test_an_empty_slot_repeats_the_first_example(dataset):
  (batch,) = reader(dataset).batches([0], 0, 1)
  assert batch['mask'][0].tolist() == [True] * 7 + [False]
  np.testing.assert_array_equal(batch['image'][0, 7], batch['image'][0, 0])


def test_an_endless_range_of_steps_is_read_at_once(dataset):
  batches = reader(dataset).batches([0], 0, 2**31 - 1)
  (first,) = reader(dataset).batches([0], 0, 1)
  np.testing.assert_array_equal(next(batches)['image'], first['image'])


def test_a_batch_that_would_leave_a_worker_without_an_example_is_refused(
  dataset, shards
):
  partition = make_partition(
    'seldp', shards.examples, WORKERS, 1, 0, contiguous=True
  )
  uneven = Assignment(partition, Shuffled(BLOCK), None, 1, SEED)
  with pytest.raises(ConfigError, match='a batch of 1: must be larger'):
    dataset.check(uneven, BATCH)


@pytest.mark.parametrize(
  'examples, batch, line',
  [
    (10, 1, 'a batch of 1: must be larger'),  # Of three workers.
    (2, 8, r'config\.data: validation: more workers \(3\) than examples \(2\)'),
  ],
)
def test_a_split_that_cannot_be_shared_is_refused_before_it_is_read(
  examples, batch, line, dataset
):
  assignment, splits = assign(dataset.splits['train']), dict(dataset.splits)
  splits['validation'] = splits['test']
  dataclasses.replace(dataset, splits=splits).check(assignment, batch)
  splits['validation'] = splits['test']._replace(examples=examples)
  with pytest.raises(ConfigError, match=line):
    dataclasses.replace(dataset, splits=splits).check(assignment, batch)


def test_only_examples_that_are_used_are_decoded(dataset):
  decoded = []

  def note(index):
    decoded.append(int(index))
    return np.int32(0)

  def decode(files, key):
    index = tf.numpy_function(
      note, [tf.strings.length(files['image'])], 'int32'
    )
    return {
      'label': files['label'] + tf.cast(tf.ensure_shape(index, []), 'int64')
    }

  how = reader(dataset, decode)
  batches = list(how.batches([0], 5, 7))
  assert len(decoded) == sum(batch['mask'].sum() for batch in batches)


def test_examples_before_the_current_block_are_not_read(dataset, monkeypatch):
  read = Shards.read
  ranges = []

  def noted(self, start, stop):
    ranges.append((start, stop))
    return read(self, start, stop)

  monkeypatch.setattr(Shards, 'read', noted)
  how = reader(dataset, lambda files, key: {'label': files['label']})
  start, _ = how.assignment.partition.bounds[1:3]
  list(how.batches([1], 5, 7))
  # Steps 5 and 6 of 9 read examples 37 to 52 of 67: blocks of 10.
  assert ranges == [(start + 30, start + 60)]


def test_evaluation_reads_every_example_once(dataset):
  data = Data(dataset, assign(dataset.splits['train']))
  images = []
  for workers in ([0, 1], [2, 3, 4]):  # Two processes, five workers.
    for batch in data.evaluation('test', 2, workers, 5):
      images += list(batch['image'][batch['mask']])
  expected = [
    dataset.transform(row) for row in dataset.splits['test'].read(0, 12)
  ]
  order = [image.tobytes() for image in images]
  assert sorted(order) == sorted(e['image'].numpy().tobytes() for e in expected)
