"""An island as the coordinator sees it, and the slots of a run."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from selsync_jax.cluster.protocol.messages import Alive, changed, Join, Place

FREE = ''
"""The name in a slot whose island has not joined yet."""

# Ways in which a member can end.
LEFT, FAILED, GONE = 'has left', 'has failed', 'is gone'
STOPPED = 'was stopped by a signal'

MINUTE = 60.0
"""Seconds over which rates are averaged."""

_UNITS = tuple(name for name in Alive.__struct_fields__ if name != 'generation')


class Refusal(Exception):
  """The reason why an island may not join.

  Args:
    line: the reason, to print.
    kind: see `messages.Ended`.
  """

  def __init__(self, line: str, kind: Any = 'refused'):
    super().__init__(line)
    self.kind = kind


class Seat:
  """An island's connection, on the coordinator's side.

  Attributes:
    number: index of the connection; later ones have larger indices.
    join: introduction of the island.
    heard_at: time of the last message from the island.
    said_at: time of the last message to the island.
    deadline: time when its wait to join ends; `None` if it does not wait.
    is_prepared: whether it can train, if it prepares.
    began: steps taken before its generation began, once it reports them.
    at: last place where it has arrived, by channel.
    done: its work so far.
  """

  def __init__(self, number: int, join: Join, now: float):
    self.number, self.join = number, join
    self.heard_at = self.said_at = now
    self.deadline: float | None = None
    self.is_prepared = False
    self.began: int | None = None
    self.at: dict[str, Place] = {}
    self.done = Alive()
    self._told = collections.deque([(now, self.done)])

  @property
  def name(self) -> str:
    """The island's name."""
    return self.join.name

  @property
  def title(self) -> str:
    """The island's name in a sentence."""
    return f'island {self.name}'

  @property
  def silence(self) -> str:
    """The fate of an island that is silent for too long."""
    return f'has not answered for {self.join.timeout:g} s'

  def note(self, done: Alive, now: float) -> None:
    """Keeps the island's report of its work."""
    self.done = done
    self._told.append((now, done))
    while len(self._told) > 2 and now - self._told[1][0] > MINUTE:
      self._told.popleft()

  def step(self, generation: int, step: int) -> None:
    """Notes a step that the island has taken in a generation."""
    if self.began is None and generation:
      self.began = step
    if step > self.done.step:
      self.done = changed(self.done, step=step)

  def account(self, now: float) -> dict[str, float]:
    """Returns the island's work, and its bytes per second in a minute."""
    (start, before), (end, _) = self._told[0], self._told[-1]
    rates = {
      f'{name}_per_second': (getattr(self.done, name) - getattr(before, name))
      / ((end - start) or 1)
      for name in ('sent_bytes', 'received_bytes')
    }
    counts = {name: getattr(self.done, name) for name in _UNITS}
    return {'silent_seconds': now - self.heard_at, **counts, **rates}


def seated(slots: Sequence[str], name: str, slot: int | None) -> list[str]:
  """Returns the slots of a run, with an island in one of them.

  Args:
    slots: name of the island in each slot, in the workers' order; some may be
      `FREE`.
    name: name of the island. If it has no slot, it takes a free one.
    slot: slot that it had before, if it knows one.

  Raises:
    Refusal: if no slot is free.

  >>> seated(['', 'oahu', ''], 'maui', 2)
  ['', 'oahu', 'maui']
  """
  slots = [*slots]
  free = [i for i, each in enumerate(slots) if each == FREE]
  if name in slots:
    return slots
  if not free:
    raise Refusal(f'island {name} is not one of {", ".join(sorted(slots))}')
  slots[slot if slot in free else free[0]] = name
  return slots


def check_run(join: Join, others: Mapping[str, Join]) -> None:
  """Raises `Refusal` if an island's program differs from the others'."""
  for other in others.values():
    names = {*join.run, *other.run}
    differ = sorted(n for n in names if join.run.get(n) != other.run.get(n))
    if differ:
      what = [
        f'{n} is {_shown(join.run.get(n))}, not {_shown(other.run.get(n))}'
        for n in differ[:3]
      ]
      more = f', and {len(differ) - 3} more' * (len(differ) > 3)
      raise Refusal(
        f'island {join.name} would run something else than '
        f'{", ".join(sorted(others))}: {"; ".join(what)}{more}; give all '
        'islands the same code, packages and config'
      )
    return


def _shown(value: str | None) -> str:
  """Returns what an island says of its program, fit for a line."""
  if value is None:
    return 'missing'
  return ''.join(filter(str.isprintable, value))[:100] or 'empty'


def in_order(seats: Iterable[Seat], slots: Sequence[str]) -> list[Seat]:
  """Returns seats in the order of the run's slots."""
  index = {name: i for i, name in enumerate(slots)}
  return sorted(seats, key=lambda seat: (index.get(seat.name, -1), seat.name))
