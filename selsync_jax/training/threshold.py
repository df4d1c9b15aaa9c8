"""LSSR for a delta, and a delta for an LSSR, from recorded gradient changes."""

import math
from typing import NamedTuple

from jaxtyping import Float
import numpy as np

ROUNDING = 0.01  # The error of LSSR allowed for a delta with few digits.


class ChangeSample(NamedTuple):
  """The gradient changes in the first steps of runs, as a sample of whole runs.

  Each step has the change that decides its vote, see `deciding`, and stands for
  a share of the run.
  """

  deciding: Float[np.ndarray, 'steps']
  weights: Float[np.ndarray, 'steps']
  max_period: int | None = None  # The most steps between synchronizations.

  def lssr(self, delta: float) -> float:
    """Returns the share of the run that a threshold leaves local."""
    synced = self.deciding >= delta
    if self.max_period is not None:
      steps = np.arange(len(synced))
      last = np.maximum.accumulate(np.where(synced, steps, -1))
      synced |= (steps - last) % self.max_period == 0
    return float(np.sum(self.weights, where=~synced))

  def curve(
    self,
  ) -> tuple[Float[np.ndarray, 'points'], Float[np.ndarray, 'points']]:
    """Returns the finite positive changes, ascending, and LSSR for each."""
    deltas = np.sort(self.deciding)
    deltas = deltas[np.isfinite(deltas) & (deltas > 0)]
    return deltas, np.array([self.lssr(delta) for delta in deltas], float)


def deciding(
  changes: Float[np.ndarray, 'steps workers'],
  quorum: float | None = None,
  vote_every: int = 1,
) -> Float[np.ndarray, 'steps']:
  """Returns the change that decides the vote at each step.

  Any delta up to it synchronizes. It is the largest relative change of all
  workers; with a quorum of k workers, the k-th largest. A vote on several steps
  takes each worker's largest change. The result is -inf at steps that cannot
  synchronize, as where a NaN vetoes the vote.
  """
  steps, workers = changes.shape
  voted = steps // vote_every * vote_every
  ballots = changes[:voted].reshape(-1, vote_every, workers).max(axis=1)
  needed = max(1, math.ceil((quorum or 0) * workers - 1e-9))
  vetoed = np.isnan(ballots).any(axis=1)
  decides = np.full(steps, -np.inf)
  decides[vote_every - 1 : voted : vote_every] = np.where(
    vetoed, -np.inf, np.sort(ballots, axis=1)[:, -needed]
  )
  return decides


def weigh(steps: int, total: int) -> Float[np.ndarray, 'steps']:
  """Returns the share of a run that each of its first steps stands for.

  The first quarter contains the warm-up of learning rate and smoothing, which
  happens once. Steps that were not taken count like the later three quarters.
  """
  once = steps // 4
  weights = np.ones(steps)
  weights[once:] = (total - once) / (steps - once)
  return weights / total


def forced_period(max_period: int | None, vote_every: int) -> int | None:
  """Returns the steps until `max_period` forces a synchronization.

  Synchronizations happen at votes, so it is a multiple of `vote_every`.
  """
  if not max_period:
    return None
  return math.ceil(max_period / vote_every) * vote_every


def max_lssr(max_period: int | None, vote_every: int) -> float:
  """Returns the largest LSSR that `max_period` allows."""
  period = forced_period(max_period, vote_every)
  return 1 - 1 / period if period else 1.0


def suggest(sample: ChangeSample, wanted: float) -> float:
  """Returns the delta with the fewest digits that gives about the wanted LSSR.

  It is finite. Its LSSR is within 0.01 of the wanted one, in [0, 1), if there
  is such a delta, otherwise as close as possible.
  """
  # All deltas above one change, up to the next, leave the same steps local.
  changes = sample.deciding[sample.deciding > 0]
  most = np.unique(np.append(changes, np.inf))
  least = np.append(0, most[:-1])
  misses = np.abs([sample.lssr(delta) - wanted for delta in most])
  near = np.flatnonzero(misses <= max(ROUNDING, misses.min()))
  low, high = least[near[0]], most[near[-1]]
  return _roundest(low, high if np.isfinite(high) else 2 * low + 1)


def _roundest(low: float, high: float) -> float:
  """Returns the number in (low, high] with the fewest digits."""
  middle = (low + high) / 2
  for digits in range(1, 17):
    number = float(f'{middle:.{digits}g}')
    if low < number <= high:
      return number
  return float(high)
