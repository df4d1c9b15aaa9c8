"""Random bits as a hash of words, in NumPy and in TensorFlow."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from selsync_jax.data import draws
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
