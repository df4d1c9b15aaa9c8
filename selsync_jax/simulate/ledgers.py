"""The ledger of a simulated run: columns and totals of virtual time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from selsync_jax.runs.ledger import Ledger
from selsync_jax.simulate.simulation import Span

TIMELINE = 64  # The number of first steps whose spans are recorded.


class VirtualLedger(Ledger):
  """A ledger with virtual time.

  `Totals.clock` keeps the virtual `seconds`, the seconds that workers have
  `waited` on average, and the number and the total `staleness` of `gradients`.
  """

  def tick(
    self,
    seconds: float,
    staleness: Sequence[int],
    versions: Sequence[int],
    spans: Sequence[Span],
  ) -> dict[str, Any]:
    """Enters the virtual time of the step that was counted last.

    Args:
      seconds: the virtual time at which the step ended.
      staleness: the staleness of each gradient of the step.
      versions: the version of each worker's model.
      spans: what the workers did since the step before.

    Returns:
      Columns of its row, see docs/stragglers.md.
    """
    waited = [0.0] * len(versions)
    for span in spans:
      if span.kind == 'wait':
        waited[span.worker] += span.ended - span.began
    clock = self.totals.clock
    clock['seconds'] = seconds
    clock['waited'] = clock.get('waited', 0.0) + float(np.mean(waited))
    clock['gradients'] = clock.get('gradients', 0) + len(staleness)
    clock['staleness'] = clock.get('staleness', 0) + sum(staleness)
    timeline = self.totals.steps <= TIMELINE
    return {
      'virtual_seconds': seconds,
      'staleness': list(staleness),
      'version': list(versions),
      'waited': waited,
      **({'spans': list(spans)} if timeline else {}),
    }

  def summary(self) -> dict[str, Any]:
    """Returns the totals, as in `summary.json`."""
    clock = self.totals.clock
    return super().summary() | {
      'virtual_seconds': clock['seconds'],
      'waited': clock['waited'],
      'staleness': clock['staleness'] / clock['gradients'],
    }
