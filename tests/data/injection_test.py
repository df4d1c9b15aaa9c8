"""Data injection against a NumPy reference of the paper's section."""

import math

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from selsync_jax.data.assignment import Assignment
from selsync_jax.data.index_shuffle import IndexShuffle
from selsync_jax.data.injection import make_injection
from selsync_jax.data.order import Shuffled
from tests.support.partitions import make_partition

N, B = 10, 32
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(N), 130))
MASK64 = 2**64 - 1


def hashed(*words):
  """SplitMix64's finalizer over some words, in Python's own integers."""
  state = 0
  for word in words:
    state = (state + 0x9E3779B97F4A7C15 & MASK64) ^ word
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK64
    state ^= state >> 31
  return state


def signed(word):
  return word - 2**64 if word >= 2**63 else word


def reference(alpha, beta, seed, step, plan):
  """Each worker's examples as (example, its reader), in order, from `plan`.

  `plan[w]` is worker w's own reads at this step.
  """
  k = math.ceil(alpha * N)
  own = math.ceil(B / (1 + alpha * beta * N))
  lots = [signed(hashed(seed, step, worker)) for worker in range(N)]
  sharers = sorted(range(N), key=lambda worker: -lots[worker])[:k]
  given = [0] * N
  pool = []
  for i in range(B - own):
    sharer = sharers[i % k]
    pool.append((plan[sharer][given[sharer]], sharer))
    given[sharer] += 1
  batches = [
    [(example, worker) for example in plan[worker][:own]]
    + [(example, sharer) for example, sharer in pool if sharer != worker]
    for worker in range(N)
  ]
  return batches, sharers, given


def assign(name, n, injection, seed, **fields):
  partition = make_partition(name, n, N, injection.own, 0, **fields)
  return Assignment(partition, Shuffled(), injection, B, seed)


def read(assignment, workers, start, stop):
  """The slots of some workers' batches: arrays [steps, workers, slots]."""
  return assignment.slots(workers, np.arange(start, stop), IndexShuffle())


@pytest.mark.parametrize('seed, start', [(0, 0), (7, 12345)])
def test_every_worker_reads_the_examples_of_the_reference(seed, start):
  injection = make_injection(0.5, 0.5, N, B)
  assignment = assign(
    'by_label', len(LABELS), injection, seed, labels=LABELS, labels_per_worker=1
  )
  own = assignment._replace(injection=None, batch_size=injection.own)
  plans = read(own, range(N), start, start + 20)
  batches = read(assignment, range(N), start, start + 20)
  assert plans.mask.all()
  assert batches.index.shape == batches.mask.shape == (20, N, B)
  for i in range(20):
    expected, sharers, given = reference(
      0.5, 0.5, seed, start + i, plans.index[i].tolist()
    )
    for worker in range(N):
      mask = batches.mask[i, worker]
      pairs = zip(
        batches.index[i, worker][mask],
        batches.reader[i, worker][mask],
        strict=True,
      )
      assert list(pairs) == expected[worker]
      assert mask.sum() == B - given[worker]
    assert [given[sharer] for sharer in sharers] == [5, 5, 4, 4, 4]
    assert sum(given) == injection.shared == 22
  # Each example is sent to the nine others.
  assert injection.examples_sent == sum(given) * (N - 1) / N


def test_slots_are_empty_for_a_sharers_own_gifts_and_for_short_batches():
  injection = make_injection(0.5, 0.5, N, B)._replace(own=10, shared=22)
  partition = make_partition('defdp', 95, N, 9, 0)  # 9 or 10 at one step.
  assignment = Assignment(partition, Shuffled(1), injection, B, 0)
  batch = read(assignment, range(N), 0, 1)
  short = partition.sizes == 9
  for worker in range(N):
    mask = batch.mask[0, worker]
    assert mask[:9].all()
    assert mask[9] == (not short[worker])
    readers = batch.reader[0, worker, 10:]
    np.testing.assert_array_equal(mask[10:], readers != worker)
    # An empty slot holds a valid example all the same.
    assert set(batch.index[0, worker, :10]) == set(partition.chunks[worker])


def test_a_process_with_some_of_the_workers_computes_the_same_sharers():
  injection = make_injection(0.25, 1.0, N, B)
  assignment = assign('seldp', 500, injection, 3)
  everyone = read(assignment, range(N), 0, 40)
  some = read(assignment, [2, 7], 25, 40)
  for whole, part in zip(everyone, some, strict=True):
    np.testing.assert_array_equal(whole[25:, [2, 7]], part)


def test_all_workers_share_equally_often():
  injection = make_injection(0.3, 0.5, N, B)
  steps = 1000
  sharers = injection.sharing_workers(np.arange(steps)[:, None, None], 0)
  assert sharers.shape == (steps, 1, 3)
  assert (np.diff(np.sort(sharers)) > 0).all()  # Three different workers.
  counts = np.bincount(sharers.ravel(), minlength=N)
  # A binomial count of 1,000 draws at 0.3: deviation 15.
  assert abs(counts - 0.3 * steps).max() < 4 * 15


@hypothesis.settings(max_examples=100)
@hypothesis.given(
  alpha=st.floats(0.01, 1),
  beta=st.floats(0.01, 1),
  workers=st.integers(1, 64),
  batch_size=st.integers(1, 256),
)
def test_no_worker_gives_more_than_it_reads_and_the_batch_is_full(
  alpha, beta, workers, batch_size
):
  try:
    injection = make_injection(alpha, beta, workers, batch_size)
  except ValueError:
    # Less than one whole example would have been shared.
    assert batch_size * (1 - 1 / (1 + alpha * beta * workers)) < 1 + 1e-9
    return
  real = batch_size / (1 + alpha * beta * workers)
  assert real <= injection.own + 1e-9 < real + 1 + 1e-8
  assert injection.own + injection.shared == batch_size
  assert injection.sharers >= alpha * workers - 1e-9
  assert -(-injection.shared // injection.sharers) <= injection.own


@pytest.mark.parametrize('alpha, beta, own', [(0.5, 0.5, 11), (0.75, 0.75, 6)])
def test_the_papers_batch_sizes_are_for_8_workers(alpha, beta, own):
  # The text says 10 workers, but its 11, 11 and 6 are equation 3 for 8.
  assert make_injection(alpha, beta, 8, 32).own == own


def test_a_share_of_seven_tenths_of_ten_is_seven():
  assert make_injection(0.7, 0.5, 10, 32).sharers == 7


def test_without_alpha_and_beta_there_is_no_injection():
  assert make_injection(0.0, 0.0, N, 32) is None
