"""Stateless random bits: a hash of words that identify each draw.

A generator's next number depends on all earlier numbers, so a resumed run would
have to draw them again. Here a number is a pure function of words such as
(seed, epoch, example), equal in every process.

References:
  Steele, Lea and Flood, `Fast Splittable Pseudorandom Number Generators`,
  OOPSLA 2014 (SplitMix64, whose finalizer mixes each word in).
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import UInt64
import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
  (30, np.uint64(0xBF58476D1CE4E5B9)),
  (27, np.uint64(0x94D049BB133111EB)),
)


def _xor_shifted(x: Any, places: int) -> Any:
  return x ^ (x // np.uint64(2**places))  # TensorFlow has no operator >>.


def hashed(words: Sequence[Any], state: Any) -> Any:
  """Hashes words into a state, with operators that all array libraries have.

  Words are uint64 arrays or tensors that broadcast against each other, and the
  state is a uint64 zero of the same library.
  """
  for word in words:
    state = (state + _STEP) ^ word
    for places, factor in _MIX:
      state = _xor_shifted(state, places) * factor
    state = _xor_shifted(state, 31)
  return state


def bits(*words: Any) -> UInt64[np.ndarray, '...']:
  """Returns 64 random bits for each element of the broadcast words."""
  arrays = [np.asarray(word).astype(np.uint64) for word in words]
  with np.errstate(over='ignore'):  # Arithmetic is modulo 2**64.
    return np.asarray(hashed(arrays, np.zeros((), np.uint64)))
