"""What the islands of a run are doing, as their meeting point knows it."""

from collections.abc import Sequence
import json
import time
from typing import Any

from selsync_jax.islands.flight import call_options, flight
from selsync_jax.islands.invitation import Invitation, reach
from selsync_jax.islands.journal import Totals
from selsync_jax.islands.seat import Seat

ENDS = ('left', 'finished', 'ended')
"""The kinds of events after which an island is away."""


def status(
  islands: int,
  minimum: int,
  names: Sequence[str],
  there: Sequence[Seat],
  totals: Totals,
) -> dict[str, Any]:
  """Returns what the islands are doing, as values of JSON.

  Args:
    islands: N, the number of the run's islands.
    minimum: the least number that trains.
    names: the names of all known islands.
    there: those that are connected.
    totals: what has happened at the meeting point.
  """
  seats = {seat.member.name: seat for seat in there}
  each = [_island(name, seats.get(name), totals) for name in names]
  steps = [row['step'] for row in each if row['state'] == 'trains']
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
    'islands': each,
  }


def _island(name: str, seat: Seat | None, totals: Totals) -> dict[str, Any]:
  """Returns what an island does; of one that is away, how it has ended."""
  if seat is None:
    last, why = totals.last_of.get(name), 'has ended with the others'
    if last and last.kind in ENDS:
      why = last.words
    return {'name': name, 'state': 'away', 'why': why}
  state = 'prepares' if totals.last.generation else 'waits'
  if name in totals.last.present:
    state = 'trains'
  row = {'name': name, 'state': state, 'silent_seconds': seat.silent}
  return row | seat.account


def ask(invitation: Invitation, timeout: float) -> dict[str, Any]:
  """Asks a meeting point for what `status` returns there.

  Args:
    invitation: the meeting point's invitation.
    timeout: seconds until it must answer.

  Raises:
    RunError: if it cannot be reached, or rejects the token.
  """
  with reach(invitation, timeout) as (_, _, point):
    options = call_options(invitation.token, timeout)
    (reply,) = point.do_action(flight.Action('status', b''), options)
    return json.loads(reply.body.to_pybytes())
