"""Which worker reads which example when: properties over random inputs."""

import collections

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from selsync_jax.data.assignment import Assignment
from selsync_jax.data.index_shuffle import IndexShuffle
from selsync_jax.data.order import Shuffled, TextStreams
from selsync_jax.data.partitions import PARTITIONS
from tests.support.partitions import make_partition

few = hypothesis.settings(max_examples=15, deadline=None)
ORDERS = [Shuffled(), Shuffled(7), TextStreams()]
sizes = hypothesis.given(
  n=st.integers(1, 200),
  workers=st.integers(1, 9),
  batch_size=st.integers(1, 20),
  seed=st.integers(0, 2**31 - 1),
  order=st.sampled_from(ORDERS),
)
LABELS = np.random.default_rng(0).integers(0, 5, 200)
FIELDS = {
  'by_label': dict(labels_per_worker=3),
  'dirichlet': dict(dirichlet_alpha=0.5),
}


def assign(name, n, workers, batch_size, seed, order=ORDERS[0]):
  fields = dict(labels=LABELS[:n], contiguous=order.contiguous)
  fields |= FIELDS.get(name, {})
  try:
    partition = make_partition(name, n, workers, batch_size, seed, **fields)
  except ValueError:
    hypothesis.reject()
  return Assignment(partition, order, None, batch_size, seed)


def read(assignment, start, stop, workers=None):
  """The slots of some workers' batches, a dict of arrays per step."""
  if workers is None:
    workers = range(len(assignment.partition.sizes))
  steps = np.arange(start, stop)
  slots = assignment.slots(workers, steps, IndexShuffle())._asdict()
  return [
    {name: array[step] for name, array in slots.items()}
    for step in range(stop - start)
  ]


@pytest.mark.parametrize('name', ['defdp', 'by_label', 'dirichlet'])
@few
@sizes
def test_a_worker_that_keeps_a_chunk_reads_all_of_it_once_per_epoch(
  name, n, workers, batch_size, seed, order
):
  if name in FIELDS:
    order = ORDERS[0]
  assignment = assign(name, n, workers, batch_size, seed, order)
  partition = assignment.partition
  steps = 2 * int(partition.steps_per_chunk(batch_size).max())
  seen = collections.defaultdict(list)
  for batch in read(assignment, 0, steps):
    for worker in range(workers):
      mask = batch['mask'][worker]
      (epoch,) = set(batch['epoch'][worker].tolist())
      seen[worker, epoch] += batch['index'][worker][mask].tolist()
  for worker in range(workers):
    assert sorted(seen[worker, 0]) == sorted(partition.chunks[worker])
    if steps == 2 * partition.steps_per_chunk(batch_size)[worker]:
      assert sorted(seen[worker, 1]) == sorted(partition.chunks[worker])


@few
@sizes
def test_seldp_gives_every_worker_every_example_once_per_pass(
  n, workers, batch_size, seed, order
):
  assignment = assign('seldp', n, workers, batch_size, seed, order)
  steps = workers * assignment.steps_per_epoch
  for start in (0, steps):
    batches = read(assignment, start, start + steps)
    for worker in range(workers):
      mine = [b['index'][worker][b['mask'][worker]] for b in batches]
      assert sorted(np.concatenate(mine)) == list(range(n))


@few
@sizes
def test_seldp_keeps_workers_on_different_chunks_at_every_step(
  n, workers, batch_size, seed, order
):
  assignment = assign('seldp', n, workers, batch_size, seed, order)
  chunk_of = np.empty(n, int)
  for chunk in range(workers):
    chunk_of[assignment.partition.chunks[chunk]] = chunk
  steps = workers * assignment.steps_per_epoch
  for batch in read(assignment, 0, steps):
    chunks = [set(chunk_of[row].tolist()) for row in batch['index']]
    assert all(len(chunk) == 1 for chunk in chunks)
    assert len(set().union(*chunks)) == workers
    every = batch['index'][batch['mask']]
    assert len(set(every.tolist())) == len(every)


@few
@sizes
@hypothesis.example(1257, 4, 32, 0, ORDERS[0])
def test_batches_of_a_chunk_differ_by_one_example_at_most(
  n, workers, batch_size, seed, order
):
  hypothesis.assume(order != TextStreams())
  assignment = assign('seldp', n, workers, batch_size, seed, order)
  steps = assignment.steps_per_epoch
  batches = read(assignment, 0, steps)
  counts = np.array([batch['mask'].sum(axis=1) for batch in batches])
  assert (np.ptp(counts, axis=0) <= 1).all()


@few
@hypothesis.given(
  n=st.integers(1, 400),
  workers=st.integers(1, 9),
  batch_size=st.integers(1, 20),
)
def test_a_slot_of_a_text_reads_in_order_and_its_empty_steps_are_spread_evenly(
  n, workers, batch_size
):
  assignment = assign('seldp', n, workers, batch_size, 0, TextStreams())
  steps = assignment.steps_per_epoch
  batches = read(assignment, 0, steps)
  index = np.stack([batch['index'] for batch in batches])
  mask = np.stack([batch['mask'] for batch in batches])
  for worker in range(workers):
    for slot in range(batch_size):
      mine = index[:, worker, slot][mask[:, worker, slot]]
      assert (np.diff(mine) == 1).all()
      assert steps - len(mine) <= 2
  empty = (~mask).sum(axis=2)
  assert (np.ptp(empty, axis=0) <= -(-batch_size // steps)).all()


def test_text_in_streams_by_hand():
  # 11 segments, 2 workers, 2 slots: chunks of 5 and 6; the first chunk's
  # slots have 2 and 3 segments, so the first is empty at one of three steps.
  batches = read(assign('seldp', 11, 2, 2, 0, TextStreams()), 0, 6)
  first = [np.where(b['mask'], b['index'], -1)[0].tolist() for b in batches]
  assert first == [[-1, 2], [0, 3], [1, 4], [5, 8], [6, 9], [7, 10]]


@few
@hypothesis.given(
  name=st.sampled_from(list(PARTITIONS)),
  order=st.sampled_from(ORDERS),
  start=st.integers(0, 10**6),
  seed=st.integers(0, 99),
)
def test_step_k_does_not_depend_on_the_step_that_was_read_first(
  name, order, start, seed
):
  order = ORDERS[0] if name in FIELDS else order
  assignment = assign(name, 101, 3, 7, seed, order)
  whole = read(assignment, start, start + 30)
  late = read(assignment, start + 23, start + 30, workers=[2])
  for batch, again in zip(whole[23:], late, strict=True):
    for field in batch:
      np.testing.assert_array_equal(batch[field][2:], again[field])


@few
@hypothesis.given(
  size=st.integers(1, 60), block=st.integers(1, 70), seed=st.integers(0, 99)
)
def test_a_block_is_shuffled_within_itself(size, block, seed):
  assignment = assign('defdp', size, 1, 1, seed, Shuffled(block))
  order = [int(batch['index'][0, 0]) for batch in read(assignment, 0, size)]
  for start in range(0, size, block):
    stop = min(start + block, size)
    assert sorted(order[start:stop]) == list(range(start, stop))


def test_every_epoch_chunk_block_and_seed_has_a_different_order():
  orders = [
    tuple((row % 64).tolist())
    for seed in range(3)
    for batch in read(assign('seldp', 256, 2, 64, seed, Shuffled(64)), 0, 8)
    for row in batch['index']
  ]
  assert len(set(orders)) == len(orders) == 48


def test_seeds_and_chunks_that_are_equal_modulo_256_have_other_orders():
  """A small shuffle's cipher takes no more than eight bits of a name."""
  orders = set()
  for seed in (0, 256, 65536, 2**32):
    assignment = assign('defdp', 512, 2, 64, seed, Shuffled(256))
    indices = [batch['index'] for batch in read(assignment, 0, 4)]
    for chunk in np.concatenate(indices, axis=1) % 256:
      orders.add(tuple(chunk.tolist()))
  assert len(orders) == 8


def test_all_readers_of_a_chunk_and_epoch_read_it_alike():
  kept = read(assign('defdp', 64, 2, 8, 0), 4, 8)  # Epoch 1.
  moved = read(assign('seldp', 64, 2, 8, 0), 4, 8)
  for one, other in zip(kept, moved, strict=True):
    np.testing.assert_array_equal(one['index'], other['index'][::-1])
