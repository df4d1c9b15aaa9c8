"""A warning for workers that train almost alone, because no gradient changes.

A delta above the changes of a run is a mistake that nothing else shows: the
run goes on, and its workers drift apart.
"""

from collections.abc import Mapping
import math
import sys
from typing import Any

from selsync_jax.sync.transformation import Trigger

PATIENCE = 100
"""Possible synchronizations before a trigger is judged."""

MOST = 0.99
"""The share of them that it may leave out without being called silent."""


class SilenceWarning:
  """Prints one line, once, if a threshold hardly ever asks for an average.

  Args:
    trigger: of the run. One that has no fixed threshold on the gradient's
      change, or an infinite one, is silent on purpose.
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
