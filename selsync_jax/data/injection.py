"""Data injection: at every step some workers share examples of their batch.

If workers have different data (one label each, say), local steps pull the
models apart. Therefore a random share alpha of the N workers gives a share beta
of its batch to all others, so that every batch has examples of several workers.

References:
  Tyagi and Swany, CLUSTER 2023, section `Data injection`, equation 3.
"""

from fractions import Fraction
import math
from typing import NamedTuple

from jaxtyping import Int64
import numpy as np

from selsync_jax.data.draws import bits


class Injection(NamedTuple):
  """The counts of workers and examples of an injection, rounded to integers."""

  workers: int  # N, the number of workers.
  sharers: int  # The workers that share at a step: alpha N, rounded up.
  # The examples that each worker reads from its own chunk at a step:
  # b' = b / (1 + alpha beta N), rounded up.
  own: int
  # The examples that the sharers give away together, b - b', in parts that
  # differ by at most one: about beta b' each, as in the paper, and at most b'.
  shared: int

  @property
  def examples_sent(self) -> float:
    """The examples that a worker sends at a step, on average over workers."""
    # Each example goes to every worker but its reader. The paper counts it once
    # (132 kB per step on CIFAR-10): the bytes that a non-sharer receives.
    return self.shared * (self.workers - 1) / self.workers

  def sharing_workers(
    self, step: Int64[np.ndarray, '...'], seed: int
  ) -> Int64[np.ndarray, '... sharers']:
    """Returns the workers that share at a step, equal on all processes."""
    lots = bits(seed, step, np.arange(self.workers)).view(np.int64)
    return np.argsort(~lots, axis=-1, kind='stable')[..., : self.sharers]

  def sources(
    self,
    worker: Int64[np.ndarray, 'workers 1'],
    step: Int64[np.ndarray, '...'],
    seed: int,
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns where the examples in the slots of workers' batches come from.

    The arrays broadcast to [..., workers, own + shared]: the worker that reads
    the example from its chunk, the slot of that worker's own batch, and whether
    the example counts.
    """
    # A worker's own examples come first. The last slots hold the shared ones,
    # equal for all workers, one of each sharer in turn. A sharer's shared
    # examples are in both places; the mask omits the second copy, so its batch
    # is smaller.
    slot = np.arange(self.own + self.shared)
    is_own = slot < self.own
    gift = np.maximum(slot - self.own, 0)
    giver = self.sharing_workers(step, seed)[..., gift % self.sharers]
    reader = np.where(is_own, worker, giver)
    source = np.where(is_own, slot, gift // self.sharers)
    return reader, source, (reader != worker) | is_own


def make_injection(
  alpha: float, beta: float, workers: int, batch_size: int
) -> Injection | None:
  """Returns the injection of batches of `batch_size`, or None if both are 0.

  At a step, a fraction `alpha` of the workers each share a fraction `beta` of
  their batch; both are in [0, 1].

  Raises:
    ValueError: if they are so small that no whole example is shared.
  """
  if not alpha and not beta:
    return None
  exact = Fraction(str(alpha)) * workers  # 0.7 * 10 is not 7 in binary.
  own = math.ceil(batch_size / (1 + exact * Fraction(str(beta))))
  if own == batch_size:
    raise ValueError(
      f'alpha={alpha}, beta={beta} are too small: no example of a batch of '
      f'{batch_size} would be shared'
    )
  return Injection(workers, math.ceil(exact), own, batch_size - own)
