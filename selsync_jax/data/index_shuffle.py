"""TensorFlow's index shuffle in NumPy: random access to a permutation.

`tf.random.experimental.index_shuffle` permutes [0, n) with a block cipher:
Simon with 4 rounds and three key words of 32 bits, on the smallest even number
of bits, at least 16, that can hold n - 1. An output that is too large is
encrypted again until it is small enough (cycle walking). TensorFlow computes
one element at a time. NumPy is fast on whole arrays alone, so `permutation`
encrypts all blocks at once and follows all cycles together.

References:
  Beaulieu et al., `The SIMON and SPECK Families of Lightweight Block Ciphers`,
    IACR ePrint 2013/404.
  Black and Rogaway, `Ciphers with Arbitrary Finite Domains`, CT-RSA 2002
    (cycle walking).
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Int64
import numpy as np

_MIN_BITS = 16
_KEY_CONSTANT = 0xFFFFFFFC ^ 1  # Simon's c, and the first bit of its z.


def _rotated(x, places, width):
  """Rotates words of `width` bits to the left."""
  mask = (1 << width) - 1
  return (x << places | x >> (width - places)) & mask


def _round_keys(words, width):
  mask = (1 << width) - 1
  first, second, third = (int(word) & 0xFFFFFFFF & mask for word in words)
  fourth = _rotated(third, width - 3, width) ^ _rotated(third, width - 4, width)
  fourth ^= first ^ _KEY_CONSTANT & mask
  return first, second, third, fourth


def _encrypted_blocks(words, bits):
  """The cipher's output for every block: int64 [2**bits]."""
  width = bits // 2
  half = np.arange(1 << width, dtype=np.uint32)
  mixed = _rotated(half, 1, width) & _rotated(half, 8, width)
  mixed ^= _rotated(half, 2, width)
  # What each round adds to a half, for every value of the other half. Small
  # types are several times faster, and so is `clip`, which checks no bounds.
  small = np.min_scalar_type(half[-1])
  first, second, third, fourth = (
    (mixed ^ np.uint32(key)).astype(small) for key in _round_keys(words, width)
  )
  left = half.astype(small)[:, None] ^ first
  right = half.astype(small) ^ second.take(left, mode='clip')
  left ^= third.take(right, mode='clip')
  right ^= fourth.take(left, mode='clip')
  return (left.astype(np.int64) << width | right).ravel()


def permutation(words: Sequence[int], size: int) -> Int64[np.ndarray, 'size']:
  """Returns the permutation of [0, size) that TensorFlow's op computes.

  Args:
    words: three words of the seed, of which the op takes 32 bits each.
    size: at least 1.
  """
  if size == 1:
    return np.zeros(1, np.int64)
  last = size - 1
  bits = max((last - 1).bit_length(), _MIN_BITS)
  bits += bits % 2
  walk = _encrypted_blocks(words, bits)
  # The op takes `bits` from log2(last), so 2**16 + 1 or 2**18 + 1 indices and
  # so on do not fit: it drops the highest bit, and reads one index twice.
  outputs = walk[np.arange(size) & ((1 << bits) - 1)]
  # Cycle walking, 64 encryptions at a time, that stops at a small output.
  walk[:size] = np.arange(min(size, len(walk)))
  for _ in range(6):
    walk = walk.take(walk, mode='clip')
  large = np.flatnonzero(outputs > last)
  while large.size:
    outputs[large] = walk[outputs[large]]
    large = large[outputs[large] > last]
  return outputs


class IndexShuffle:
  """The op itself, elementwise; it keeps the permutations of the last call."""

  def __init__(self):
    self._recent: dict[tuple[int, ...], np.ndarray] = {}

  def __call__(
    self, index: Any, words: Sequence[Any], last: Any
  ) -> Int64[np.ndarray, '...']:
    """Permutes each index.

    Args:
      index: int64 array, each in [0, last].
      words: three words of the seed, which broadcast to `index`.
      last: the largest index; broadcasts to `index`.
    """
    each = np.stack(np.broadcast_arrays(*words, last), axis=-1)
    rows, group = np.unique(each.reshape(-1, 4), axis=0, return_inverse=True)
    recent, self._recent = self._recent, {}
    begins, total = [], 0
    for *key, largest in rows.tolist():
      name = (*key, largest)
      if name not in recent:
        recent[name] = permutation(key, largest + 1)
      self._recent[name] = recent[name]
      begins.append(total)
      total += largest + 1
    outputs = np.concatenate(list(self._recent.values()))
    return outputs[np.array(begins)[group.reshape(each.shape[:-1])] + index]
