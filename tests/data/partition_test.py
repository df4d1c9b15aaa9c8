"""Partitions: properties over random sizes, workers and seeds."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from selsync_jax.data.partitions import PARTITIONS
from tests.support.partitions import make_partition

few = hypothesis.settings(max_examples=40)


def by(name, labels, workers, seed=0, **fields):
  """A partition by labels."""
  return make_partition(
    name, len(labels), workers, 1, seed, labels=labels, **fields
  )


@pytest.mark.parametrize('contiguous', [False, True])
@pytest.mark.parametrize('name', ['defdp', 'seldp'])
@few
@hypothesis.given(
  n=st.integers(1, 300), workers=st.integers(1, 12), seed=st.integers(0, 99)
)
def test_equal_chunks_are_a_disjoint_cover(name, contiguous, n, workers, seed):
  hypothesis.assume(workers <= n)
  partition = make_partition(name, n, workers, 1, seed, contiguous=contiguous)
  assert sorted(np.concatenate(partition.chunks)) == list(range(n))
  assert np.ptp(partition.sizes) <= 1
  if contiguous:  # Neighbors stay neighbors.
    assert (partition.indices == np.arange(n)).all()


@st.composite
def labeled(draw):
  """Labels of at least 1 example each, in any order, with gaps."""
  names = draw(
    st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True)
  )
  sizes = [draw(st.integers(1, 30)) for _ in names]
  rng = np.random.default_rng(draw(st.integers(0, 99)))
  return rng.permutation(np.repeat(names, sizes)).astype(np.int32)


@few
@hypothesis.given(
  labels=labeled(),
  workers=st.integers(1, 12),
  labels_per_worker=st.integers(1, 8),
  seed=st.integers(0, 99),
)
def test_by_label_gives_each_worker_its_labels_and_each_example_to_one_worker(
  labels, workers, labels_per_worker, seed
):
  try:
    own = dict(labels_per_worker=labels_per_worker)
    partition = by('by_label', labels, workers, seed, **own)
  except ValueError:  # Refused for one of these reasons only.
    kinds, sizes = np.unique(labels, return_counts=True)
    slots = workers * labels_per_worker
    assert (
      labels_per_worker > len(kinds)
      or slots < len(kinds)
      or (sizes < slots // len(kinds) + (slots % len(kinds) > 0)).any()
      or workers > len(labels)
    )
    return
  names_of = [set(labels[chunk].tolist()) for chunk in partition.chunks]
  assert [len(names) for names in names_of] == [labels_per_worker] * workers
  assert sorted(np.concatenate(partition.chunks)) == list(range(len(labels)))
  for name in np.unique(labels):  # Split evenly among its workers.
    counts = [np.sum(labels[chunk] == name) for chunk in partition.chunks]
    assert np.ptp([count for count in counts if count]) <= 1


def test_with_one_label_per_worker_worker_n_has_label_n_as_in_the_paper():
  labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 9))
  partition = by('by_label', labels, 10, labels_per_worker=1)
  for worker, chunk in enumerate(partition.chunks):
    assert labels[chunk].tolist() == [worker] * 9
  assert not partition.rotates


@few
@hypothesis.given(
  labels=labeled(),
  workers=st.integers(1, 12),
  alpha=st.floats(1e-3, 1e3),
  seed=st.integers(0, 99),
)
def test_dirichlet_gives_every_example_to_one_worker_in_equal_chunks(
  labels, workers, alpha, seed
):
  hypothesis.assume(workers <= len(labels))
  partition = by('dirichlet', labels, workers, seed, dirichlet_alpha=alpha)
  assert sorted(np.concatenate(partition.chunks)) == list(range(len(labels)))
  assert np.ptp(partition.sizes) <= 1


def shares(alpha, workers, seed=0):
  """Each worker's share of each of 10 labels, with enough examples."""
  labels = np.repeat(np.arange(10, dtype=np.int32), 4000)
  partition = by('dirichlet', labels, workers, seed, dirichlet_alpha=alpha)
  each = [np.bincount(labels[c], minlength=10) for c in partition.chunks]
  return np.stack(each) / partition.sizes[:, None]


def test_dirichlet_ranges_from_one_label_per_worker_to_equal_mixes():
  one = shares(1e-3, 10)
  assert one[0].max() == 1.0
  assert (one > 0).sum(axis=1).max() <= 4  # At most what the others left.
  assert np.ptp(shares(1e5, 10)) < 0.1  # Noise from drawing 4,000 examples.


def test_the_first_mix_has_the_moments_of_dirichlet_alpha_p():
  # The first of many workers has all labels to draw from, so its mix is as
  # drawn. Dirichlet(alpha p) with p = 1/10 has mean 1/10 and variance
  # p (1 - p) / (alpha + 1); sampling 100 examples adds its own variance.
  alpha = 2.0
  mixes = np.stack([shares(alpha, 400, seed)[0] for seed in range(60)])
  variance = 0.09 / (alpha + 1) + (0.09 - 0.09 / (alpha + 1)) / 100
  assert mixes.mean() == pytest.approx(0.1)
  assert mixes.var() == pytest.approx(variance, rel=0.15)


def test_another_seed_gives_another_partition():
  labels = np.repeat(np.arange(4), 10)
  fields = {
    'by_label': {'labels_per_worker': 2},
    'dirichlet': {'dirichlet_alpha': 1.0},
  }
  for name in PARTITIONS:
    orders = {
      tuple(by(name, labels, 4, seed, **fields.get(name, {})).indices.tolist())
      for seed in (0, 0, 1, 2)
    }
    assert len(orders) == 3
