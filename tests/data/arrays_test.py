"""The NumPy backend gives TensorFlow's batches, bit for bit."""

import operator

import numpy as np
import pytest

from selsync_jax.data import from_arrays
from tests.support import batches

WORKERS, BATCH = 4, 6
CASES = {
  'digits seldp': {},
  'digits defdp': dict(partition='defdp'),
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


@pytest.fixture(scope='module', params=CASES)
def both(request, data_dir):
  """The same data by NumPy and by TensorFlow."""
  fields = CASES[request.param] | dict(dir=data_dir)
  return [
    batches.opened(WORKERS, BATCH, seed=3, backend=backend, **fields)
    for backend in ('numpy', 'tf')
  ]


@pytest.mark.parametrize(
  'workers, start, stop',
  [(range(WORKERS), 0, 130), ([1, 3], 99_990, 100_010), ([2], 7, 8)],
)
def test_training_batches_are_equal(both, workers, start, stop):
  numpy, tensorflow = both
  batches.assert_equal(
    numpy.batches(workers, start, stop),
    tensorflow.batches(workers, start, stop),
  )


@pytest.mark.parametrize(
  'split', [pytest.param('train', marks=pytest.mark.slow), 'validation', 'test']
)
def test_evaluation_batches_are_equal(both, split):
  numpy, tensorflow = both
  for workers in ([0, 1], [2]):  # Two processes, three workers.
    batches.assert_equal(
      numpy.evaluation(split, 50, workers, 3),
      tensorflow.evaluation(split, 50, workers, 3),
    )


def test_all_metadata_of_the_data_is_equal(both):
  numpy, tensorflow = both
  for name in (
    *('dataset.task', 'dataset.num_classes', 'assignment.steps_per_epoch'),
    *('injected_bytes_per_step', 'facts'),
  ):
    of = operator.attrgetter(name)
    assert of(numpy) == of(tensorflow), name
  np.testing.assert_array_equal(numpy.label_counts, tensorflow.label_counts)
  batches.assert_equal([numpy.example], [tensorflow.example])


@pytest.mark.parametrize('dtype', [np.uint8, np.int8, np.uint16])
def test_labels_may_fill_their_type(dtype):
  most = np.iinfo(dtype).max
  label = np.arange(64, dtype=dtype) + dtype(most - 63)
  split = {'image': np.zeros((64, 2), np.float32), 'label': label}
  dataset = from_arrays(
    **batches.same_splits(split),
    **dict(task='classification', num_classes=int(most) + 1),
  )
  counts = batches.assigned(dataset).label_counts
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
    **batches.same_splits(split),
    **dict(task='language_modeling', num_classes=2**16),
    transform=lambda batch: {
      'inputs': batch['tokens'][:, :-1],
      'targets': batch['tokens'][:, 1:],
    },
  )
  data = batches.assigned(dataset, 2, 3)
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
