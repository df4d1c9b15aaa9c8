"""The NumPy backend gives TensorFlow's batches, bit for bit."""

import operator

import numpy as np
import pytest

from selsync_jax.configs import base
from selsync_jax.data import assign, bind_data, from_arrays, open_data

WORKERS, BATCH = 4, 6
CASES = {
  'digits seldp': dict(),
  'digits defdp, 3 channels': dict(partition='defdp', channels=3),
  'digits by_label, injected': dict(
    partition='by_label',
    labels_per_worker=5,
    injection=dict(alpha=0.5, beta=0.5),
  ),
  'digits dirichlet': dict(partition='dirichlet', dirichlet_alpha=10.0),
  'hyperplane seldp': dict(name='hyperplane', dimensions=5),
  'stdlib_text seldp': dict(name='stdlib_text', bptt=64),
  'stdlib_text defdp, injected': dict(
    name='stdlib_text',
    bptt=50,
    partition='defdp',
    injection=dict(alpha=0.25, beta=1.0),
  ),
}


def opened(backend, data_dir, case, seed=3):
  fields = base.get_config('bsp').data
  with fields.ignore_type():
    fields.update(CASES[case], backend=backend, dir=data_dir)
  bound = bind_data(fields.to_dict())
  return open_data(bound, workers=WORKERS, batch_size=BATCH, seed=seed)


@pytest.fixture(scope='module', params=CASES)
def both(request, data_dir):
  """The same data by NumPy and by TensorFlow."""
  return [opened(name, data_dir, request.param) for name in ('numpy', 'tf')]


def assert_equal_batches(each, expected):
  steps = 0
  for batch, same in zip(each, expected, strict=True):
    assert batch.keys() == same.keys()
    for name, array in batch.items():
      assert array.dtype == same[name].dtype, name
      np.testing.assert_array_equal(array, same[name])
    steps += 1
  assert steps


@pytest.mark.parametrize(
  'workers, start, stop',
  [(range(WORKERS), 0, 130), ([1, 3], 99_990, 100_010), ([2], 7, 8)],
)
def test_training_batches_are_equal(both, workers, start, stop):
  numpy, tensorflow = both
  assert_equal_batches(
    numpy.batches(workers, start, stop),
    tensorflow.batches(workers, start, stop),
  )


@pytest.mark.parametrize(
  'split', [pytest.param('train', marks=pytest.mark.slow), 'validation', 'test']
)
def test_evaluation_batches_are_equal(both, split):
  numpy, tensorflow = both
  for workers in ([0, 1], [2]):  # Two processes, three workers.
    assert_equal_batches(
      numpy.evaluation(split, 50, workers, 3),
      tensorflow.evaluation(split, 50, workers, 3),
    )


def test_all_that_is_known_of_the_data_is_equal(both):
  numpy, tensorflow = both
  for name in (
    *('dataset.task', 'dataset.num_classes', 'assignment.steps_per_epoch'),
    *('injected_bytes_per_step', 'facts'),
  ):
    of = operator.attrgetter(name)
    assert of(numpy) == of(tensorflow), name
  np.testing.assert_array_equal(numpy.label_counts, tensorflow.label_counts)
  assert_equal_batches([numpy.example], [tensorflow.example])


def test_another_seed_gives_other_batches(data_dir):
  one, other = (
    next(opened('numpy', data_dir, 'digits seldp', seed).batches([0], 0, 1))
    for seed in (3, 4)
  )
  assert (one['image'] != other['image']).any()


@pytest.mark.parametrize('dtype', [np.uint8, np.int8, np.uint16])
def test_labels_may_fill_their_type(dtype):
  most = np.iinfo(dtype).max
  label = np.arange(64, dtype=dtype) + dtype(most - 63)
  split = {'image': np.zeros((64, 2), np.float32), 'label': label}
  dataset = from_arrays(
    train=split,
    validation=split,
    test=split,
    task='classification',
    num_classes=int(most) + 1,
  )
  fields = base.get_config('bsp').data.to_dict()
  assigned = assign(dataset, bind_data(fields), 2, 4, seed=0)
  counts = assigned.label_counts
  assert counts.shape == (2, int(most) + 1)
  assert counts[:, -1].sum() == 1


@pytest.mark.slow
def test_a_corpus_larger_than_memory_is_read_where_a_batch_needs_it(tmp_path):
  bptt, size = 2**15, 2**37  # In tokens: a sparse file of 256 GiB.
  with open(tmp_path / 'corpus.bin', 'wb') as file:
    file.truncate(2 * size)
  tokens = np.memmap(tmp_path / 'corpus.bin', np.uint16, 'r+')
  windows = np.lib.stride_tricks.sliding_window_view(tokens, bptt + 1)
  split = {'tokens': windows[::bptt]}
  dataset = from_arrays(
    train=split,
    validation=split,
    test=split,
    task='language_modeling',
    num_classes=2**16,
    transform=lambda batch: {
      'inputs': batch['tokens'][:, :-1],
      'targets': batch['tokens'][:, 1:],
    },
  )
  fields = base.get_config('bsp').data.to_dict()
  data = assign(dataset, bind_data(fields), 2, 3, seed=0)
  (slots,) = data.assignment.schedule([1], 1000, 1001).blocks()
  for index in slots.index.ravel():
    segment = tokens[index * bptt : (index + 1) * bptt + 1]
    segment[:] = np.arange(bptt + 1) + index
  (batch,) = data.batches([1], 1000, 1001)
  expected = np.arange(bptt) + slots.index[0, ..., None]
  np.testing.assert_array_equal(batch['inputs'], expected.astype(np.uint16))
  np.testing.assert_array_equal(
    batch['targets'], (expected + 1).astype(np.uint16)
  )
  assert data.fingerprint['train']['examples'] == size // bptt - 1
