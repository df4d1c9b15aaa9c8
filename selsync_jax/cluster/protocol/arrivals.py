"""A place at which islands of a generation arrive."""

from selsync_jax.cluster.protocol.messages import Arrived, Place
from selsync_jax.cluster.protocol.seats import Seat


class Arrivals:
  """The islands that have arrived at one place.

  Attributes:
    bodies: vote of each island, once it is known.
    times: time of each island's arrival.
    groups: islands by place; places in a group must fit each other.
  """

  def __init__(self):
    self.bodies: dict[Seat, bytes] = {}
    self.times: dict[Seat, float] = {}
    self.groups: list[tuple[Place, list[Seat]]] = []

  def add(self, seat: Seat, said: Arrived, now: float) -> None:
    """Adds an island's arrival, or the vote that follows it."""
    if said.body is not None:
      self.bodies[seat] = said.body
    if seat in self.times:
      return
    self.times[seat] = now
    for place, group in self.groups:
      if place.fits(said.place):
        return group.append(seat)
    self.groups.append((said.place, [seat]))
