"""What the islands of a run are doing, as their meeting point knows it."""

from collections.abc import Sequence
import json
import time
from typing import Any

from selsync_jax.islands.flight import call_options
from selsync_jax.islands.flight import flight
from selsync_jax.islands.invitation import Invitation
from selsync_jax.islands.invitation import reach
from selsync_jax.islands.seat import Seat
from selsync_jax.runs.journal import Event
from selsync_jax.runs.journal import participation

ENDS = ('left', 'finished', 'ended')
"""The kinds of events after which an island is away."""


def status(
  islands: int,
  minimum: int,
  names: Sequence[str],
  there: Sequence[Seat],
  events: Sequence[Event],
) -> dict[str, Any]:
  """Returns what the islands are doing, as values of JSON.

  Args:
    islands: N, the number with which the run begins.
    minimum: the least number that goes on.
    names: the names of all known islands.
    there: those that are connected.
    events: all that have happened at the meeting point.
  """
  last = events[-1] if events else Event(0.0, '', '', '')
  seats = {seat.member.name: seat for seat in there}
  each = [_island(name, seats.get(name), last, events) for name in names]
  steps = [row['step'] for row in each if row['state'] == 'trains']
  kinds = [event.kind for event in events]
  present = len(last.present)
  return {
    'expected': islands,
    'minimum': minimum,
    'present': present,
    'generation': last.generation,
    'participation': present / islands,
    'mean_participation': participation(events, time.time()),
    'step_spread': max(steps) - min(steps) if steps else 0,
    'admitted': kinds.count('admitted'),
    'ended': kinds.count('ended'),
    'left': kinds.count('left'),
    'islands': each,
  }


def _island(
  name: str, seat: Seat | None, last: Event, events: Sequence[Event]
) -> dict[str, Any]:
  """Returns what an island does; of one that is away, how it has ended."""
  if seat is None:
    of_it = [event for event in events if event.island == name]
    has_ended = of_it and of_it[-1].kind in ENDS
    why = of_it[-1].words if has_ended else 'has ended with the others'
    return {'name': name, 'state': 'away', 'why': why}
  state = 'prepares' if last.generation else 'waits'
  if name in last.present:
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
