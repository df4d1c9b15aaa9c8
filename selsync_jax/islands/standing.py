"""What islands know of their run, when a meeting point has to learn it again.

A meeting point that has been killed and started again knows nothing. All that
it knew of a run, each of its islands has heard. They may have heard different
things last, but as every share needs all of them, none is ahead of another by
more than one share of each channel.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

FREE = ''
"""What stands for the name of an island that has not come yet."""

Key = tuple[int, str, int]
"""Of a share: the generation, the channel, and a number in both."""


class Shared(NamedTuple):
  """What all islands of a generation have shared.

  Attributes:
    key: by which they know it.
    admits: whether they let others in since.
    whole: the bytes of all.
  """

  key: Key
  admits: bool
  whole: bytes


@dataclasses.dataclass(frozen=True)
class Standing:
  """What an island knows of its run.

  Attributes:
    generation: the number of the last that it has heard of.
    circle: what tells it from others of that number, by other meeting points.
    islands: the addresses of those in it, by name.
    slots: the names of the run's islands, see `seated`.
    admissions: how often others have been let in.
    admits: whether some are about to be.
    heard: the last share of each channel.
    reached: the step in which it waits, if all are about to stop.
    last: the step after which all stop, if it is known.
  """

  generation: int
  circle: str
  islands: Mapping[str, str]
  slots: Sequence[str]
  admissions: int
  admits: bool
  heard: Sequence[Shared]
  reached: int | None
  last: int | None

  @classmethod
  def first(
    cls, islands: Mapping[str, str], slots: Sequence[str]
  ) -> 'Standing':
    """Returns what islands know that have never met."""
    return cls(0, '', islands, slots, 0, False, [], None, None)

  def contradicts(self, other: 'Standing') -> bool:
    """Returns whether two meeting points have parted these islands."""
    return self.generation == other.generation and self.circle != other.circle

  def to_json(self) -> dict[str, Any]:
    """Returns it as values of JSON."""
    heard = [
      (*key, admits, base64.b64encode(whole).decode())
      for key, admits, whole in self.heard
    ]
    return {**vars(self), 'heard': heard}

  @classmethod
  def from_json(cls, found: Mapping[str, Any]) -> 'Standing':
    """Inverts `to_json`; `ValueError` if it is something else."""
    try:
      heard = [
        Shared((generation, channel, number), admits, base64.b64decode(whole))
        for generation, channel, number, admits, whole in found['heard']
      ]
      fields: dict[str, Any] = {**found, 'heard': heard}
      return cls(**fields)
    except (TypeError, KeyError) as error:
      raise ValueError(f'an island tells no standing: {error}') from error


def seated(slots: Sequence[str], name: str, slot: int | None) -> list[str]:
  """Returns the slots of a run, in one of which an island is.

  Args:
    slots: the name of the island in each, in the order of the workers; some may
      be `FREE`.
    name: the island's name. If it is in none, it takes a free one.
    slot: the one that it has had before, if it knows one.

  Raises:
    ValueError: if there is none for it.

  >>> seated(['', 'oahu', ''], 'maui', 2)
  ['', 'oahu', 'maui']
  """
  slots = [*slots]
  free = [i for i, each in enumerate(slots) if each == FREE]
  if name in slots:
    return slots
  if not free:
    raise ValueError(f'island {name} is not one of {", ".join(sorted(slots))}')
  slots[slot if slot in free else free[0]] = name
  return slots


def newest(standings: Iterable[Standing]) -> Standing:
  """Returns that of the last generation."""
  return max(standings, key=lambda standing: standing.generation)


def missed(standing: Standing, others: Iterable[Standing]) -> list[Shared]:
  """Returns the shares that others have heard and this island waits for."""
  own = {share.key for share in standing.heard}
  heard = {share for other in others for share in other.heard}
  its = sorted(s for s in heard if s.key[0] == standing.generation)
  last = {share.key[1]: share for share in its}  # By channel.
  return [share for share in last.values() if share.key not in own]
