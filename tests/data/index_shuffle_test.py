"""The index shuffle in NumPy against TensorFlow's op, bit for bit."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from selsync_jax.data.index_shuffle import IndexShuffle, permutation


def tensorflow(index, words, last):
  return tf.raw_ops.RandomIndexShuffle(
    index=np.asarray(index, np.int64),
    seed=np.asarray(words, np.int64),
    max_index=np.asarray(last, np.int64),
  ).numpy()


words = st.lists(st.integers(0, 2**40), min_size=3, max_size=3)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(words, st.integers(1, 5000))
def test_a_permutation_is_the_ops(words, size):
  expected = tensorflow(np.arange(size), words, size - 1)
  np.testing.assert_array_equal(permutation(words, size), expected)
  assert sorted(expected) == list(range(size))


# The cipher has an even number of bits: 16 up to the first of these sizes.
@pytest.mark.parametrize('power', [16, 17, 18, 19, 20])
@pytest.mark.parametrize('more', [-1, 0, 1, 2])
def test_a_permutation_is_the_ops_where_the_cipher_grows(power, more):
  size, words = 2**power + more, (3, power, 2**33 + 5)
  expected = tensorflow(np.arange(size), words, size - 1)
  np.testing.assert_array_equal(permutation(words, size), expected)


@pytest.mark.slow
@hypothesis.settings(max_examples=10, deadline=None)
@hypothesis.given(st.integers(0, 2**31 - 1))
def test_elements_of_several_permutations_are_shuffled_together(seed):
  rng = np.random.default_rng(seed)
  shape = (4, 3, 7)
  epoch, start = rng.integers(0, 3, shape), rng.integers(0, 3, shape)
  last = rng.choice([0, 1, 80, 65535, 70000], shape)
  index = rng.integers(0, last + 1)
  shuffle = IndexShuffle()
  expected = tensorflow(
    index.ravel(),
    np.stack([np.full(shape, seed), epoch, start], axis=-1).reshape(-1, 3),
    last.ravel(),
  ).reshape(shape)
  for _ in range(2):  # The second call has cached permutations.
    shuffled = shuffle(index, (seed, epoch, start), last)
    np.testing.assert_array_equal(shuffled, expected)
