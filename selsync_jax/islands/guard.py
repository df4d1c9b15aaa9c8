"""Names islands that send unusual values.

The parts of a sum are compared before they are added: every island sends the
same elements. A guard only names; a robust averager limits the damage.
"""

import collections
from collections.abc import Callable, Sequence
import math
import statistics

import jax.numpy as jnp
import numpy as np

from selsync_jax.cluster.protocol.messages import Place

LARGE = 10.0
"""The least unusual norm, in multiples of the median norm of all islands."""

MEMORY = 16
"""Earlier messages of an island with which a message is compared."""


class Guard:
  """Says a line about each island that sends unusual floating-point values.

  Unusual values are not finite, have a `LARGE` norm, or have the norm of an
  earlier message, and so are probably its values. More than half of the islands
  must send usual ones: a run that diverges, or that has a learning rate of 0,
  names no island. A generation names an island once for each reason.
  """

  def __init__(self, say: Callable[[str], None]):
    self._say = say
    self._forget(None)

  def _forget(self, generation: int | None) -> None:
    """Forgets all messages of earlier generations of islands."""
    self._generation = generation
    self._named: set[tuple[str, str]] = set()
    self._norms: dict[tuple[str, ...], collections.deque[float]] = (
      collections.defaultdict(lambda: collections.deque(maxlen=MEMORY))
    )

  def see(
    self, place: Place, names: Sequence[str], messages: Sequence[np.ndarray]
  ) -> None:
    """Compares the islands' messages of the same elements at a place."""
    # One of two cannot be named: which one is unusual?
    if len(names) < 3 or not jnp.issubdtype(messages[0].dtype, jnp.floating):
      return
    if place.generation != self._generation:
      self._forget(place.generation)
    norms = [*map(norm, messages)]
    usual = statistics.median([n for n in norms if math.isfinite(n)] or [0.0])
    shape = str(messages[0].shape)
    earlier = [self._norms[name, place.operation, shape] for name in names]
    found = {
      'values that are not finite': [not math.isfinite(n) for n in norms],
      f'values {LARGE:g} times as large as is usual': [
        math.isfinite(n) and n > LARGE * usual for n in norms
      ],
      'the values of an earlier average': [
        n > 0 and n in old for n, old in zip(norms, earlier, strict=True)
      ],
    }
    for what, unusual in found.items():
      if 2 * sum(unusual) < len(names):
        for name, is_unusual in zip(names, unusual, strict=True):
          if is_unusual and (name, what) not in self._named:
            self._named.add((name, what))
            self._say(f'island {name} has sent {what}, at {place}')
    for n, old in zip(norms, earlier, strict=True):
      old.append(n)


def norm(x: np.ndarray) -> float:
  """Returns the L2 norm; float64 holds the square of any float32."""
  flat = x.ravel()
  if flat.dtype.kind != 'f':  # NumPy has no sum of bfloat16 in float64.
    flat = flat.astype(np.float32)
  return math.sqrt(np.einsum('i,i->', flat, flat, dtype=np.float64))
