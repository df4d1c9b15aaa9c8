"""Status of a run's islands, from their coordinator."""

from collections.abc import Mapping
import json
import time
from typing import Any

from selsync_jax.islands import credentials
from selsync_jax.islands.credentials import Invitation
from selsync_jax.islands.journal import Totals

ENDS = ('left', 'finished', 'ended')
"""The kinds of events after which an island is away."""


def status(
  islands: int,
  minimum: int,
  each: Mapping[str, Mapping[str, Any]],
  totals: Totals,
) -> dict[str, Any]:
  """Returns the status of the islands, as values of JSON.

  Args:
    islands: N, the number of the run's islands.
    minimum: the least number that trains.
    each: activity of each known island; see `Coordinator.status`.
    totals: totals of the events at the coordinator.
  """
  rows = [_island(name, row, totals) for name, row in each.items()]
  steps = [row['step'] for row in rows if row['state'] == 'trains']
  present = len(totals.last.present)
  return {
    'expected': islands,
    'minimum': minimum,
    'present': present,
    'generation': totals.last.generation,
    'participation': present / islands,
    'mean_participation': totals.participation(time.time()),
    'step_spread': max(steps) - min(steps) if steps else 0,
    'admitted': totals.counts.get('admitted', 0),
    'ended': totals.counts.get('ended', 0),
    'left': totals.counts.get('left', 0),
    'islands': rows,
  }


def _island(
  name: str, row: Mapping[str, Any], totals: Totals
) -> dict[str, Any]:
  """Returns the state of an island; if it is away, how it ended."""
  if row:
    return {'name': name, **row}
  last, why = totals.last_of.get(name), 'is away'
  if last and last.kind in ENDS:
    why = last.words
  return {'name': name, 'state': 'away', 'why': why}


def ask(invitation: Invitation, timeout: float) -> dict[str, Any]:
  """Asks a coordinator for its `status`.

  Args:
    invitation: the coordinator's invitation.
    timeout: seconds until it must answer.

  Raises:
    RunError: if it cannot be reached, or rejects the token.
  """
  content, _, _ = credentials.ask(invitation, 'status', timeout)
  return json.loads(content)
