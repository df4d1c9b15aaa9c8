"""Real data in, batches of all local workers out."""

import hashlib

import numpy as np
import pytest

from selsync_jax import datasets
from selsync_jax import partition as partition_lib
from selsync_jax import pipeline


@pytest.fixture(scope='module')
def digits(data_dir):
  source = datasets.create('digits')
  return {
    split: datasets.load(source, split, data_dir)
    for split in ('train', 'validation', 'test')
  }


def test_the_digits_are_scikit_learns_each_in_one_split(digits):
  from sklearn.datasets import load_digits

  def rows(image, label):
    flat = image.reshape(len(image), -1)
    return sorted(map(tuple, np.column_stack([label, flat]).tolist()))

  ours = {
    field: np.concatenate([split[field] for split in digits.values()])
    for field in ('image', 'label')
  }
  theirs = load_digits()
  assert ours['image'].dtype == np.float32
  assert ours['image'].max() == 1.0
  assert rows(ours['image'] * 16, ours['label']) == rows(
    theirs.images, theirs.target
  )
  assert [len(s['label']) for s in digits.values()] == [1257, 180, 360]


def test_every_digit_has_its_share_of_every_split(digits):
  for split in digits.values():
    share = np.bincount(split['label'], minlength=10) / len(split['label'])
    np.testing.assert_allclose(share, 0.1, atol=0.012)


def test_the_split_is_the_same_on_every_machine(digits):
  digest = hashlib.sha256()
  for split in digits.values():
    digest.update((split['image'] * 16).astype(np.uint8).tobytes())
    digest.update(split['label'].astype(np.uint8).tobytes())
  assert digest.hexdigest()[:16] == '97ff964c8528b93a', (
    'The examples or their order changed: results on digits no longer '
    'compare with those measured before. Raise SklearnDigits.VERSION.'
  )


def test_training_batches_hold_the_examples_that_the_partition_names(digits):
  train = digits['train']
  partition = partition_lib.create('seldp', 1257, 4, 32, 3)
  plan = partition_lib.batches(partition, 32, 3, [1, 2], 5, 25)
  batches = pipeline.train_batches(train, partition, 32, 3, [1, 2], 5, 25)
  for step, batch in zip(plan.as_numpy_iterator(), batches, strict=True):
    np.testing.assert_array_equal(batch['mask'], step['mask'])
    for field in train:
      np.testing.assert_array_equal(batch[field], train[field][step['index']])


@pytest.mark.parametrize('batch_size', [1, 7, 90, 1000])
def test_evaluation_reads_every_example_once(digits, batch_size):
  labels = []
  for workers in ([0, 1], [2]):  # Two processes, three workers.
    for batch in pipeline.eval_batches(digits['test'], batch_size, workers, 3):
      labels += batch['label'][batch['mask']].tolist()
  assert sorted(labels) == sorted(digits['test']['label'].tolist())
