"""TensorFlow's index shuffle in NumPy: random access to a permutation.

`tf.random.experimental.index_shuffle` permutes [0, n) with a block cipher:
Simon with 4 rounds and three key words of 32 bits, on the smallest even number
of bits, at least 16, that can hold n - 1. An output that is too large is
encrypted again until it is small enough (cycle walking). TensorFlow computes
one element at a time. NumPy is fast only on whole arrays, so `permutation`
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


def _cipher_bits(size):
  """Bits of a block of the cipher that permutes [0, size)."""
  bits = max((size - 2).bit_length(), _MIN_BITS)
  return bits + bits % 2


def _encrypt_blocks(words, bits, scratch):
  """Computes the cipher's output for every block, in `scratch[0]`."""
  width = bits // 2
  half = np.arange(1 << width)
  mixed = _rotated(half, 1, width) & _rotated(half, 8, width)
  mixed ^= _rotated(half, 2, width)
  # The term that each round adds to a half, for every value of the other half.
  first, second, third, fourth = (
    mixed ^ key for key in _round_keys(words, width)
  )
  left, right, added = scratch.reshape(3, 1 << width, 1 << width)
  np.bitwise_xor(half[:, None], first, out=left)
  right[:] = half
  right ^= second.take(left, out=added, mode='clip')
  left ^= third.take(right, out=added, mode='clip')
  right ^= fourth.take(left, out=added, mode='clip')
  left <<= width
  left |= right


def permutation(
  words: Sequence[int],
  size: int,
  scratch: Int64[np.ndarray, '3 blocks'] | None = None,
) -> Int64[np.ndarray, 'size']:
  """Returns the permutation of [0, size) that TensorFlow's op computes.

  The op takes 32 bits of each of the three words of the seed. `scratch` is
  memory that another call has used: the system clears the pages of new memory
  first, which takes twice as long.
  """
  if size == 1:
    return np.zeros(1, np.int64)
  last, bits = size - 1, _cipher_bits(size)
  if scratch is None:
    scratch = np.empty((3, 1 << bits), np.int64)
  _encrypt_blocks(words, bits, scratch)
  walk, farther, _ = scratch
  # The op takes `bits` from log2(last), so 2**16 + 1 or 2**18 + 1 indices and
  # so on do not fit: it drops the highest bit, and reads one index twice.
  outputs = walk[np.arange(size) & ((1 << bits) - 1)]
  # Cycle walking, 64 encryptions at a time, that stops at a small output.
  walk[:size] = np.arange(min(size, len(walk)))
  for _ in range(6):
    walk.take(walk, out=farther, mode='clip')  # `clip` checks no bounds.
    walk, farther = farther, walk
  large = np.flatnonzero(outputs > last)
  while large.size:
    outputs[large] = walk[outputs[large]]
    large = large[outputs[large] > last]
  return outputs


class IndexShuffle:
  """The op itself, elementwise; caches the permutations of the last call."""

  def __init__(self):
    self._recent: dict[tuple[int, ...], np.ndarray] = {}
    self._scratch = np.empty((3, 0), np.int64)

  def __call__(
    self, index: Any, words: Sequence[Any], last: Any
  ) -> Int64[np.ndarray, '...']:
    """Permutes each index, int64 in [0, last].

    The three words of the seed and `last` broadcast to `index`.
    """
    each = np.stack(np.broadcast_arrays(*words, last), axis=-1)
    rows, group = np.unique(each.reshape(-1, 4), axis=0, return_inverse=True)
    recent, self._recent = self._recent, {}
    begins, total = [], 0
    for *key, largest in rows.tolist():
      name, size = (*key, largest), largest + 1
      if name not in recent:
        shape = (3, 1 << _cipher_bits(size))
        if self._scratch.shape != shape:
          self._scratch = np.empty(shape, np.int64)
        recent[name] = permutation(key, size, self._scratch)
      self._recent[name] = recent[name]
      begins.append(total)
      total += size
    outputs = np.concatenate(list(self._recent.values()))
    return outputs[np.array(begins)[group.reshape(each.shape[:-1])] + index]
