"""The state that islands resume from, and copies of it for others."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from selsync_jax.config import RunError
from selsync_jax.islands.peers import About, Peers

_NONE = -2
"""Fills up a list of checkpoints; no step has this number."""


class Takers(NamedTuple):
  """The islands that share a checkpoint.

  Attributes:
    number: how many islands must have the checkpoint, so that all can use it:
      the members when it was taken; or one, if it was taken for others, which
      resume from a copy.
    original: worker that took it for others or alone, or -1.
    line: checksum of the part that is equal in all islands' checkpoints. It
      differs if some islands have continued without the others.
  """

  number: int
  original: int = -1
  line: int = 0


class Chosen(NamedTuple):
  """The checkpoint that all islands resume from.

  Attributes:
    step: the checkpoint's step; -1 if there is none.
    content: another island's copy, if this one gets one.
    copies: maps each island that gets a copy to the island that sends it.
  """

  step: int
  content: bytes | None
  copies: dict[str, str]


def agree(
  peers: Peers,
  takers: dict[int, Takers],
  pack: Callable[[int], bytes],
  advice: str,
) -> Chosen:
  """Returns the newest checkpoint that all islands have, or may get copies of.

  See `IslandParticipants.choose`.

  Args:
    peers: all islands.
    takers: `Takers` of this island's checkpoints, by step; the number is 0 for
      a checkpoint that the others have to resume from.
    pack: returns the content of a checkpoint; called by all processes of the
      sending island, of which the first uses the result.
    advice: what to do if there is no such checkpoint.

  Raises:
    RunError: if there is no such checkpoint, but some islands have others.
  """
  own = [[step, *about] for step, about in takers.items()]
  most = int(peers.fold('pmax', np.array(len(own))))
  rows = np.array(own + [[_NONE] * 4] * (most - len(own)), np.int64)
  each = [
    [saved for saved in found.tolist() if saved[0] != _NONE]
    for found in peers.gather(rows.reshape(most, 4))
  ]
  # An island that saved a step alone, and died, has another checkpoint than the
  # islands that have repeated the step without it.
  having: dict[tuple[int, ...], list[int]] = {}
  for i, found in enumerate(each):
    for saved in found:
      having.setdefault(tuple(saved), []).append(i)
  given = {saved: there for saved, there in having.items() if not saved[1]}
  if peers.was_admitted and not given:
    raise RunError(
      'the islands that admitted this one have ended; start all again'
    )
  usable = given or {
    saved: there
    for saved, there in having.items()
    if len(there) >= min(saved[1], peers.size)  # Not all need have joined.
  }
  if having and not usable:
    newest = (
      f'{name} {f"step {max(found)[0]}" if found else "none"}'
      for name, found in zip(peers.names, each, strict=True)
    )
    raise RunError(
      f'the islands have no checkpoint in common: {", ".join(newest)}; {advice}'
    )
  (step, number, original, _), there = max(
    usable.items(),
    key=lambda each: (each[0][0], len(each[1])),
    default=((-1, 0, -1, 0), [*range(peers.size)]),
  )
  if number == 1:  # Others have copies, which `rounds` must record.
    slots = [peers.slots.index(name) for name in peers.names]
    there = [i for i in there if slots[i] == original] or there[:1]
  if len(there) == peers.size:
    return Chosen(step, None, {})
  copies = {
    name: peers.names[there[0]]
    for i, name in enumerate(peers.names)
    if i not in there
  }
  donor, has = there[0], peers.index in there
  donates = peers.index == donor
  content = np.frombuffer(pack(step) if donates else b'', np.uint8)
  size = int(peers.fold('pmax', np.array(content.size)))
  like, nothing = np.broadcast_to(np.uint8(0), size), content[:0]
  islands = range(peers.size)
  received = peers.exchange(
    [content if donates and i not in there else nothing for i in islands],
    About(
      'copy', like, [nothing if has or i != donor else like for i in islands]
    ),
  )
  return Chosen(step, None if has else received[donor].tobytes(), copies)
