"""Log of an island's rounds, with everything that config and data do not tell.

The computation of islands follows from their config and their data, except for

  - the islands that took part in a step: if one ends in it, the others repeat
    it without that one;
  - the islands that were members and read their data, which are leased to them,
    see `leases`;
  - the islands that rest in a step, if islands keep their own `pace`;
  - the number of steps that an average travels, if a budget needs to know it;
  - the island whose state another one copied before a step, when that one
    joined, or all resumed and it lacked their checkpoint;
  - whether a delayed mean had arrived when it was needed. If not, because
    islands have joined, left, or resumed meanwhile, the members form it again;
  - the steps that count, if all have ended and resumed from an earlier one.

A slow network, an island that is frozen for a moment, and a coordinator that
restarts change nothing.

`rounds.jsonl` has a row for each step with an average, and for each step with
other islands than the step before. Rows are only appended, so a kill at any
moment costs no more than the last one.
"""

from collections.abc import Mapping, Sequence
import json
import math
import pathlib
from typing import Any, TypedDict

import jax
import numpy as np

from selsync_jax.cluster import processes
from selsync_jax.config import RunError
from selsync_jax.devices import arrays
from selsync_jax.runs import array_files, files, records

ROUNDS = 'rounds.jsonl'


class Beginning(TypedDict):
  """How islands resumed from a checkpoint, or began.

  `slots` are the names of the run's islands, in the order of the workers,
  with `FREE` for islands that have not joined yet. `copies` maps an island
  without the checkpoint to the island that it got a copy from. `program` is
  the digest of the training step and of the data; `None` if there is only one
  island.
  """

  slots: list[str]
  copies: dict[str, str]
  program: str | None


class Round(TypedDict):
  """An island's record of a step.

  `members` are the names of the islands that took part, in the order of their
  indices, and `readers` the names of those expected when they read the batch;
  `digest` is the checksum of the island's parameters after the step. `arrived`
  says whether the delayed mean that the step needed had arrived on all of them;
  `None` if it needed none. `shares` are the shares of steps that each slot
  takes from then on, if that was decided, see `pace`. `travel` is the number of
  steps that an average travels, if a budget has asked, see `budgeted`. `begins`
  says how islands began before the step, if it is the first one, perhaps from a
  checkpoint.
  """

  step: int
  members: list[str]
  readers: list[str]
  digest: int
  arrived: bool | None
  shares: list[int] | None
  travel: float | None
  begins: Beginning | None


class Rounds:
  """Writes the log of an island to the folder of its run.

  The first row is written after the first step, when the folder is claimed.

  Attributes:
    program: see `Beginning`; set it before the first step.
    readers: see `Round`; set it before every step.
  """

  def __init__(self, workdir: pathlib.Path):
    self._file = _file(workdir)
    self._members: list[str] = []
    self._begins: Beginning | None = None
    self.program: str | None = None
    self.readers: list[str] = []

  @property
  def copied(self) -> Sequence[str]:
    """The islands that begin the next step with a copy of another's state."""
    return [*self._begins['copies']] if self._begins else []

  def begin(self, slots: Sequence[str], copies: Mapping[str, str]) -> None:
    """Notes how the islands resume from a checkpoint, or begin."""
    self._begins = Beginning(
      slots=list(slots), copies=dict(copies), program=None
    )

  def add(
    self,
    state: Any,
    members: Sequence[str],
    averaged: bool,
    arrived: bool | None,
    shares: list[int] | None = None,
    travel: float | None = None,
  ) -> None:
    """Adds the `Round` of a step, if the step has one.

    `state` is the island's `TrainState` [1, ...] after the step; `averaged`
    says whether the step has applied an average.
    """
    members, begins = list(members), self._begins
    if not (averaged or begins or members != self._members):
      return
    step, found = int(np.asarray(state.step)[0]), digest(state)
    self._members, self._begins = members, None
    if not processes.is_first():
      return
    if begins:  # Later rows concern steps that are repeated.
      begins['program'] = self.program
      self._file.cut(step - 1)
    row = Round(
      step=step,
      members=members,
      readers=self.readers,
      digest=found,
      arrived=arrived,
      shares=shares,
      travel=travel,
      begins=begins,
    )
    path = self._file.path
    with files.naming(path), path.open('a') as file:
      file.write(f'{json.dumps(row)}\n')


def digest(state: Any) -> int:
  """Returns the checksum of the parameters in an island's state."""
  params = jax.tree.map(
    lambda x: np.asarray(arrays.everywhere(x)), state.params
  )
  return array_files.checksum(array_files.flat(params))


def read(workdir: pathlib.Path) -> dict[int, Round]:
  """Returns the rows of an island's log by step; none if there is no log.

  Raises:
    DamagedFile: if a line is damaged.
  """
  file = _file(workdir)
  rows, damaged = file.read()
  if damaged:
    raise files.DamagedFile(file.path, f'lines that are no rows: {damaged}')
  return {step: Round(**row) for step, (_, row) in rows.items()}


def slot(workdir: pathlib.Path, name: str) -> int | None:
  """Returns the slot that an island had in its run, if it has a log."""
  rows, _ = _file(workdir).read()
  begins = [row['begins'] for _, row in rows.values() if row['begins']]
  slots = begins[-1]['slots'] if begins else []
  return slots.index(name) if name in slots else None


def _file(workdir: pathlib.Path) -> records.Lines:
  return records.Lines(workdir / ROUNDS, lambda line: files.parse(line, Round))


def lineage(logs: Mapping[str, Mapping[int, Round]]) -> dict[int, Round]:
  """Returns the rows, by step, of the steps that led to the run's end.

  These are the rows of one island that was a member at the end. If it got a
  copy of another one's state, its earlier work no longer counts, and earlier
  rows are the other island's.

  Raises:
    RunError: if one of these logs is missing, or its beginning.
  """

  def end(name):
    last = max(logs[name])
    # An island that alone heard of a step's completion, and ended, has another
    # row than the islands that have repeated the step.
    return last, -len(logs[name][last]['members'])

  name = source = max(logs, key=end)
  before, found = math.inf, {}
  while source:
    name, rows, source = source, logs.get(source, {}), ''
    for step in sorted((s for s in rows if s < before), reverse=True):
      found[step], begins = rows[step], rows[step]['begins']
      if begins and name in begins['copies']:
        source, before = begins['copies'][name], step
        break
  if (first := min(found)) > 1 or not found[first]['begins']:
    raise RunError(
      f'island {name}: there is no {ROUNDS} with its rounds before step {first}'
    )
  return dict(sorted(found.items()))
