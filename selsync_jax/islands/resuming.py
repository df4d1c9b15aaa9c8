"""From which checkpoint islands go on, and who gets it from whom."""

from collections.abc import Callable
import json
import pathlib
from typing import Any, NamedTuple
import zlib

import numpy as np

from selsync_jax.config import RunError
from selsync_jax.islands.peers import About, Peers
from selsync_jax.runs import checkpoints
from selsync_jax.runs.checkpoints import Choice


class Takers(NamedTuple):
  """Of which islands a checkpoint is.

  Attributes:
    number: how many must have it, so that all can use it: those that were there
      when it was taken; or one, if it was taken for others, who go on from a
      copy.
    original: the worker that has taken it for others or alone, or -1.
    line: a checksum of what is equal in the checkpoints of all, and differs if
      some islands have gone on without the others.
  """

  number: int
  original: int = -1
  line: int = 0


def takers(path: pathlib.Path) -> Takers:
  """Returns of which islands a checkpoint is."""
  record = checkpoints.read_record(path)
  equal = json.dumps([record.get('leases'), record.get('pace')])
  line = zlib.crc32(equal.encode())
  present = record.get('present', record['workers'])
  return Takers(present, record.get('original', -1), line)


def agree(
  peers: Peers,
  takers: dict[int, Takers],
  pack: Callable[[int], bytes],
) -> tuple[Choice, dict[str, str]]:
  """Returns what this island goes on from, and who gets whose checkpoint.

  See `IslandParticipants.choose`.

  Args:
    peers: all islands.
    takers: the `Takers` of this island's checkpoints, by step; the number is 0
      of the one from which the others have to go on.
    pack: returns a checkpoint as `packed`; called by all processes of the
      island that sends it, in the first of which it counts.
  """
  pairs = [(step, *about) for step, about in takers.items()]
  own = np.array(pairs, np.int64).reshape(-1, 4)
  anything: list[Any] = [None] * peers.size
  about = About('gather', own, anything, varies=True)
  each = [found.tolist() for found in peers.exchange([own] * peers.size, about)]
  # Who has saved a step alone, and died, has another one than those who have
  # repeated the step without it.
  having: dict[tuple[int, ...], list[int]] = {}
  for i, found in enumerate(each):
    for saved in found:
      having.setdefault(tuple(saved), []).append(i)
  given = {saved: there for saved, there in having.items() if not saved[1]}
  if peers.was_admitted and not given:
    raise RunError('those who let this island in have ended; start all again')
  usable = given or {
    saved: there
    for saved, there in having.items()
    if len(there) >= min(saved[1], peers.size)  # Not all need have come.
  }
  if having and not usable:
    newest = (
      f'{name} {f"step {max(found)[0]}" if found else "none"}'
      for name, found in zip(peers.names, each, strict=True)
    )
    raise RunError(
      f'the islands have no checkpoint in common: {", ".join(newest)}; '
      'restore what is missing, or start all of them over with --restart'
    )
  (step, number, original, _), there = max(
    usable.items(),
    key=lambda each: (each[0][0], len(each[1])),
    default=((-1, 0, -1, 0), [*range(peers.size)]),
  )
  if number == 1:  # That of the others is a copy, which `rounds` must tell.
    slots = [peers.slots.index(name) for name in peers.names]
    there = [i for i in there if slots[i] == original] or there[:1]
  if len(there) == peers.size:
    return Choice(step), {}
  copies = {
    name: peers.names[there[0]]
    for i, name in enumerate(peers.names)
    if i not in there
  }
  content = pack(step) if peers.index == there[0] else b''
  whole, nothing = np.frombuffer(content, np.uint8), np.zeros(0, np.uint8)
  donor: list[Any] = [
    None if i == there[0] else nothing for i in range(peers.size)
  ]
  received = peers.exchange(
    [nothing if i in there else whole for i in range(peers.size)],
    About('copy', whole, donor, varies=True),
  )
  if peers.index in there:
    return Choice(step), copies
  return Choice(step, received[there[0]].tobytes()), copies
