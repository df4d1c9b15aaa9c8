"""Which delta for a wanted LSSR? `python -m selsync_jax.delta --config=...`.

The paper gives no rule. This is one. It runs SelSync with delta 0, which is BSP,
and records every worker's relative gradient change. At a step of that series a
threshold would have synchronised if enough workers reached it, so the series
gives LSSR as a function of delta, and the delta for a wanted LSSR. Workers that
synchronise less see other gradients, so the suggestion is then tried; where it
misses, what that trial recorded suggests a better one.

The schedule is squeezed into the steps of a trial, so that all of its phases
are seen. Gradients settle as training goes on: a trial that is much shorter
than the run is to be sees too many changes, and suggests too large a delta.
"""

import math
from typing import NamedTuple

from jaxtyping import Float
import ml_collections
import numpy as np

from selsync_jax import probe

TOLERANCE = 0.02  # Of LSSR; a suggestion that misses by more is corrected.
TRIALS = 2  # Of a suggestion, at most.


class Trial(NamedTuple):
  """One probe: a delta, and the change that decided at each step."""

  delta: float
  deciding: Float[np.ndarray, 'steps']

  @property
  def reached(self) -> float:
    """The LSSR of the probe."""
    return lssr(self.deciding, self.delta)


def deciding(
  changes: Float[np.ndarray, 'steps workers'], quorum: float | None
) -> Float[np.ndarray, 'steps']:
  """The change that decides the vote at each step.

  Any delta up to it synchronises: it is the largest, or with a quorum that of
  the last worker who is needed.
  """
  workers = changes.shape[1]
  needed = 1 if quorum is None else math.ceil(quorum * workers - 1e-9)
  return np.sort(changes, axis=1)[:, -needed]


def lssr(deciding: Float[np.ndarray, 'steps'], delta: float) -> float:
  """The share of steps that a threshold leaves local."""
  return float(np.mean(deciding < delta))


def suggest(deciding: Float[np.ndarray, 'steps'], wanted: float) -> float:
  """The delta that leaves a wanted share of these steps local.

  Where changes lie densely, a hair of delta is much of LSSR. So of all places
  within 0.02 of the wanted share it takes the widest gap between changes, and
  in it the number with the fewest digits.

  Args:
    deciding: changes that decided a vote, infinite without a past.
    wanted: LSSR, in [0, 1).

  Returns:
    A threshold above 0.
  """
  past = np.sort(deciding[np.isfinite(deciding)])
  ends = np.concatenate([[0], past, [2 * past.max(initial=1e-3)]])
  steps = len(deciding)
  near = range(
    max(0, math.ceil((wanted - TOLERANCE) * steps)),
    min(len(past), math.floor((wanted + TOLERANCE) * steps)) + 1,
  )
  places = list(near) or [min(len(past), round(wanted * steps))]
  local = max(places, key=lambda k: ends[k + 1] - ends[k])
  return _short(ends[local], ends[local + 1])


def _short(low: float, high: float) -> float:
  """The number above `low`, not above `high`, with the fewest digits."""
  middle = (low + high) / 2
  for digits in range(1, 17):
    number = float(f'{middle:.{digits}g}')
    if low < number <= high:
      return number
  return high


def choose(
  config: ml_collections.ConfigDict, wanted: float, steps: int
) -> list[Trial]:
  """The trials that lead to a delta: BSP first, the best of the others last.

  Args:
    config: of the run.
    wanted: LSSR, in [0, 1).
    steps: of a trial.
  """
  trials = [_try(config, 0.0, steps)]
  while len(trials) <= TRIALS:
    trials.append(_try(config, suggest(trials[-1].deciding, wanted), steps))
    if abs(trials[-1].reached - wanted) <= TOLERANCE:
      break
  return sorted(trials, key=lambda t: (t.delta > 0, -abs(t.reached - wanted)))


def _try(config, delta, steps):
  config = config.copy_and_resolve_references()
  config.sync.delta = delta
  config.steps = steps
  seen = probe.run(config, steps)
  return Trial(delta, deciding(seen.changes, config.sync.quorum))
