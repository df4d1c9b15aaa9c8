"""A warning for a delta so large that workers train almost alone.

Nothing else shows this mistake: the run continues, and its workers diverge.
"""

from collections.abc import Mapping
import math
import sys
from typing import Any

from selsync_jax.sync.transformation import Trigger

PATIENCE = 100
"""The number of possible synchronizations before the check."""

MOST = 0.99
"""The share of them that a trigger may leave out without a warning."""


class SilenceWarning:
  """A warning, printed once, if a threshold hardly ever causes an average.

  Args:
    trigger: the run's trigger. One without a fixed threshold on the gradient's
      change, or with an infinite one, gets no warning.
  """

  def __init__(self, trigger: Trigger):
    traits = trigger.traits
    threshold = traits.threshold if traits.meter else None
    self._is_due = threshold is not None and math.isfinite(threshold)
    self._spacing = traits.spacing

  def watch(self, row: Mapping[str, Any]) -> None:
    """Takes the row of a step, as in `metrics.jsonl`."""
    possible = row['step'] // self._spacing
    if not self._is_due or possible < PATIENCE:
      return
    steps, lssr = row['step'], row['lssr']
    syncs = round((1 - lssr) * steps)
    if syncs <= 1 or 1 - syncs / possible > MOST:
      self._is_due = False
      print(
        f'step {steps}: {syncs} of {steps} steps synchronized (LSSR '
        f'{lssr:.3f}), so the workers train almost alone; `python -m '
        'selsync_jax delta` finds a lower delta, and without '
        '--config.sync.delta a budget does',
        file=sys.stderr,
      )
