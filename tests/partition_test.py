"""Who reads what: properties over random sizes, workers, batches and seeds."""

import collections

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from selsync_jax import partition as partition_lib

sizes = hypothesis.given(
  n=st.integers(1, 200),
  workers=st.integers(1, 9),
  batch_size=st.integers(1, 20),
  seed=st.integers(0, 2**31 - 1),
)
few = hypothesis.settings(max_examples=25, deadline=None)


def plan(name, n, workers, batch_size, seed, steps, start=0, wanted=None):
  """Partition, and the batches of some workers from a step on."""
  try:
    partition = partition_lib.create(name, n, workers, batch_size, seed)
  except ValueError:
    hypothesis.reject()
  steps = steps(partition)
  wanted = range(workers) if wanted is None else wanted
  batches = partition_lib.batches(
    partition, batch_size, seed, wanted, start, start + steps
  )
  return partition, list(batches.as_numpy_iterator())


def pass_steps(partition_, batch_size):
  """Steps of one pass of SelDP: N epochs."""
  epoch = partition_lib.steps_per_epoch(partition_, batch_size)
  return epoch * len(partition_.sizes)


@few
@sizes
def test_defdp_is_a_disjoint_cover_in_every_epoch(n, workers, batch_size, seed):
  def steps(partition):
    return 2 * int(-(-partition.sizes.max() // batch_size))

  _, batches = plan('defdp', n, workers, batch_size, seed, steps)
  for worker in range(workers):
    seen = collections.defaultdict(list)
    for batch in batches:
      index = batch['index'][worker][batch['mask'][worker]]
      seen[batch['epoch'][worker]] += index.tolist()
    assert len(set(seen[0])) == len(seen[0])
    assert set(seen[0]) == set(seen[1])
    batches[0].setdefault('cover', []).extend(seen[0])
  assert sorted(batches[0]['cover']) == list(range(n))


@few
@sizes
def test_seldp_shows_every_worker_every_example_once_a_pass(
  n, workers, batch_size, seed
):
  partition, batches = plan(
    'seldp',
    n,
    workers,
    batch_size,
    seed,
    lambda p: 2 * pass_steps(p, batch_size),
  )
  half = pass_steps(partition, batch_size)
  for turn in (batches[:half], batches[half:]):
    for worker in range(workers):
      read = np.concatenate(
        [b['index'][worker][b['mask'][worker]] for b in turn]
      )
      assert sorted(read) == list(range(n))


@few
@sizes
def test_seldp_keeps_workers_on_different_chunks_at_every_step(
  n, workers, batch_size, seed
):
  partition, batches = plan(
    'seldp',
    n,
    workers,
    batch_size,
    seed,
    lambda p: pass_steps(p, batch_size),
  )
  chunk_of = np.empty(n, int)
  for chunk in range(workers):
    lo, hi = partition.bounds[chunk : chunk + 2]
    chunk_of[partition.order[lo:hi]] = chunk
  for batch in batches:
    chunks = [set(chunk_of[row].tolist()) for row in batch['index']]
    assert all(len(chunk) == 1 for chunk in chunks)
    assert len(set().union(*chunks)) == workers
    read = batch['index'][batch['mask']]
    assert len(set(read.tolist())) == len(read)


@few
@sizes
@hypothesis.example(n=1257, workers=4, batch_size=32, seed=0)
def test_batches_of_a_chunk_differ_by_one_example_at_most(
  n, workers, batch_size, seed
):
  _, batches = plan(
    'seldp',
    n,
    workers,
    batch_size,
    seed,
    lambda p: partition_lib.steps_per_epoch(p, batch_size),
  )
  counts = np.array([batch['mask'].sum(axis=1) for batch in batches])
  assert (np.ptp(counts, axis=0) <= 1).all()


@few
@sizes
@hypothesis.example(n=101, workers=3, batch_size=7, seed=5)
def test_step_k_does_not_depend_on_how_one_got_there(
  n, workers, batch_size, seed
):
  for name in partition_lib.PARTITIONS:
    _, whole = plan(name, n, workers, batch_size, seed, lambda p: 30)
    _, late = plan(
      name,
      n,
      workers,
      batch_size,
      seed,
      lambda p: 7,
      start=23,
      wanted=[workers - 1],
    )
    for batch, again in zip(whole[23:], late, strict=True):
      for field in batch:
        np.testing.assert_array_equal(batch[field][-1:], again[field])


def test_every_epoch_is_shuffled_anew_and_every_seed_differently():
  def first(seed, epoch):
    _, batches = plan('defdp', 64, 2, 32, seed, lambda p: 1, start=epoch)
    return tuple(batches[0]['index'][0].tolist())

  orders = {first(seed, epoch) for seed in range(3) for epoch in range(4)}
  assert len(orders) == 12


@pytest.mark.parametrize(
  'name, n, workers, batch_size, message',
  [
    ('seldq', 10, 2, 2, "'seldq' is none of defdp, seldp"),
    ('seldp', 3, 4, 1, '4 workers are more than the 3 examples'),
    (
      'defdp',
      11,
      2,
      6,
      'a batch of 6 is larger than a partition: the smallest of 2 has 5',
    ),
  ],
)
def test_an_impossible_partition_is_refused(
  name, n, workers, batch_size, message
):
  with pytest.raises(ValueError, match=message):
    partition_lib.create(name, n, workers, batch_size, 0)
