"""Random bits and permutations, in NumPy and in TensorFlow."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from selsync_jax.data import draws
from selsync_jax.data.index_shuffle import IndexShuffle, permutation
from selsync_jax.data.tfdata import augment


def test_bits_of_one_word_begin_as_splitmix64_does():
  # The generator's first output from state 0, as published with it.
  assert int(draws.bits(0)) == 0xE220A8397B1DCDAF


def test_bits_depend_on_every_word_and_its_position_and_on_nothing_else():
  words = np.arange(40)
  table = draws.bits(7, words[:, None], words)
  assert table.shape == (40, 40)
  assert len(np.unique(table)) == 1600
  assert table[3, 4] == draws.bits(7, 3, 4)
  assert table[3, 4] not in (draws.bits(8, 3, 4), draws.bits(7, 3))
  share = np.unpackbits(table.view(np.uint8)).mean()
  assert share == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(table.size * 64))


@hypothesis.settings(max_examples=50)
@hypothesis.given(
  st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5)
)
def test_tensorflow_gives_the_same_bits(words):
  tensors = [tf.constant(word, tf.int64) for word in words]
  arrays = [np.int64(word) for word in words]
  assert int(augment.bits(*tensors)) == int(draws.bits(*arrays))


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
