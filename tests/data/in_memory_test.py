"""Real data in, batches of all local workers out, exact to the example."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from selsync_jax.data import assign, bind_data, draws, open_dataset
from selsync_jax.data.partitions import PARTITIONS

FIELDS = {
  'digits': dict(image_size=10),
  'cifar10': {},
  'cifar100': dict(image_size=40),
  'stdlib_text': dict(bptt=64),
  'wikitext103': dict(bptt=3),
}
CUTS = {
  'by_label': dict(labels_per_worker=5),
  'dirichlet': dict(dirichlet_alpha=10.0),
}
NOT_SET = dict.fromkeys(
  (
    *('image_size', 'bptt', 'window', 'dimensions'),
    *('labels_per_worker', 'dirichlet_alpha', 'dir'),
  )
)
WORKERS, BATCH = 4, 6


def fields_of(name, directory):
  common = dict(name=name, backend='tf', dir=directory, partition='seldp')
  common |= dict(injection=dict(alpha=0.0, beta=0.0))
  return NOT_SET | FIELDS[name] | common


@functools.cache
def dataset(name, directory):
  fields = fields_of(name, directory)
  if directory:
    return open_dataset(bind_data(fields))
  with tfds.testing.mock_data(num_examples=200):
    return open_dataset(bind_data(fields))  # Real loading code, random pixels.


def opened(name, dirs, partition='seldp', alpha=0.0, beta=0.0, seed=3):
  """Data in memory, over 4 workers with batches of 6."""
  fields = fields_of(name, dirs.get(name)) | CUTS.get(partition, {})
  fields |= dict(partition=partition, injection=dict(alpha=alpha, beta=beta))
  source = dataset(name, dirs.get(name))
  return assign(source, bind_data(fields), WORKERS, BATCH, seed)


@pytest.fixture(scope='module')
def dirs(data_dir, archives_dir):
  return {
    'digits': data_dir,
    'stdlib_text': data_dir,
    'wikitext103': archives_dir,
  }


# Every data set, every partition, and an injection.
QUICK = [
  *(('digits', cut, {}) for cut in PARTITIONS),
  *((name, 'seldp', {}) for name in FIELDS if name != 'digits'),
  ('cifar10', 'dirichlet', dict(alpha=0.25, beta=1.0)),
]


@pytest.fixture(
  scope='module',
  params=QUICK,
  ids=lambda x: ' '.join(map(str, x)),
)
def data(request, dirs):
  name, partition, injection = request.param
  return opened(name, dirs, partition, **injection)


def read(data, start, stop, workers=range(WORKERS)):
  return list(data.batches(workers, start, stop))


@pytest.mark.parametrize(
  'workers, start', [(range(WORKERS), 55), ([1, 3], 100_037)]
)
def test_a_batch_holds_its_assigned_examples_transformed_one_by_one(
  data, workers, start
):
  """Also on one process of several, and from any step on."""
  where, steps = (workers, start, start + 3), range(start, start + 3)
  seed, dataset = data.assignment.seed, data.dataset
  for step, batch in zip(steps, data.batches(*where), strict=True):
    (slots,) = data.assignment.schedule(workers, step, step + 1).blocks()
    slots = slots._replace(**{k: v[0] for k, v in slots._asdict().items()})
    np.testing.assert_array_equal(batch['mask'], slots.mask)
    for worker, slot in np.argwhere(slots.mask)[::5]:
      index, epoch = slots.index[worker, slot], slots.epoch[worker, slot]
      key = tf.constant(draws.bits(seed, epoch, [index]))
      stored = {
        k: tf.constant(v[[index]], dataset.dtypes.get(k, v.dtype))
        for k, v in dataset.splits['train'].items()
      }
      example = (
        dataset.train(stored, key)
        if dataset.train
        else dataset.transform(stored)
      )
      for field, value in example.items():
        np.testing.assert_allclose(
          batch[field][worker, slot], value[0], atol=1e-6
        )


def test_an_empty_slot_holds_a_valid_example(data):
  """So every result that a model computes from it is finite."""
  for batch in read(data, 0, 20):
    for field, array in batch.items():
      assert array.shape[:2] == (WORKERS, BATCH), field
      assert np.isfinite(array).all()
    assert batch['mask'].any(axis=1).all()


def test_an_image_is_augmented_differently_in_every_epoch(dirs):
  data = opened('cifar10', dirs, 'defdp')
  steps = int(data.assignment.partition.steps_per_chunk(BATCH)[0])
  images = [
    {
      image.tobytes()
      for batch in read(data, epoch * steps, (epoch + 1) * steps, [0])
      for image in batch['image'][0][batch['mask'][0]]
    }
    for epoch in range(2)
  ]
  assert len(images[0] | images[1]) > 1.9 * 50


@pytest.mark.parametrize('batch_size', [1, 7, 90, 1000])
def test_evaluation_reads_every_example_once(dirs, batch_size):
  data = opened('digits', dirs)
  test, labels = data.dataset.splits['test'], []
  for workers in ([0, 1], [2]):  # Two processes, three workers.
    for batch in data.evaluation('test', batch_size, workers, 3):
      labels += batch['label'][batch['mask']].tolist()
  assert sorted(labels) == sorted(test['label'].tolist())


def test_label_counts_match_each_chunk(dirs):
  data = opened('digits', dirs, 'by_label')
  labels = data.dataset.splits['train']['label']
  counts = data.label_counts
  assert ((counts > 0).sum(axis=1) == 5).all()
  np.testing.assert_array_equal(counts.sum(axis=0), np.bincount(labels))
  assert opened('wikitext103', dirs).label_counts is None


def test_injected_bytes_match_the_stored_examples(dirs):
  # 4 workers, alpha = beta = 1/2, b = 6: b' = 3, so the two sharers give 3
  # images of 3,072 bytes and as many labels of 4 to 3 others each.
  data = opened('cifar10', dirs, 'dirichlet', alpha=0.5, beta=0.5)
  assert data.injected_bytes_per_step == 3 * 3 * (3072 + 4) / 4
  assert opened('cifar10', dirs).injected_bytes_per_step == 0
