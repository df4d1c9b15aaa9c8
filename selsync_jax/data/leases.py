"""Which islands read which data while islands join and leave.

The batches form a table with a column per slot. An island reads the column of
its slot, one row at each step. While some islands are missing, the columns that
are furthest behind are leased, for some steps, to islands whose own columns are
ahead.

A batch counts with the next average, or at once if its island is alone. If the
island ends before that average, the other islands reread its batches since the
previous average. If averages cover all parameters of all islands, every
batch counts once.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from selsync_jax.data.protocol import Batch, Data

TERM = 100
"""The steps of a lease. Changing columns is slow: it opens a pipeline."""


class Range(NamedTuple):
  """Consecutive batches of a column.

  Attributes:
    slot: the slot of the island that has read the batches.
    column: the slot that reads the batches if no island is missing.
    row: the first row.
    rows: the number of rows.
  """

  slot: int
  column: int
  row: int
  rows: int


_LISTS = 'open', 'travels', 'doubtful', 'returned'


class Leases:
  """The leases of a run, equal on all islands.

  Args:
    slots: N, the number of the run's islands.

  Attributes:
    averaged: whether an average, late or not, was applied in the last step.

  Example:
    >>> leases = Leases(3)
    >>> leases.next([0, 1, 2])
    {0: (0, 0), 1: (1, 0), 2: (2, 0)}
    >>> leases.complete([0, 2])  # The other one has ended in this step.
    >>> leases.next([0, 2])
    {0: (0, 1), 2: (1, 0)}
  """

  def __init__(self, slots: int):
    self._slots = range(slots)
    self.begin(0, None)

  def begin(self, row: int, kept: Mapping[str, Any] | None) -> None:
    """Continues from a record, `kept`, or else with all columns at `row`."""
    kept = kept or {}
    # By column: the next row.
    self._read = [*kept.get('read', (row for _ in self._slots))]
    # By slot: the column that it reads, and for how many more steps.
    self._columns = dict(kept.get('columns', ()))
    self._left = kept.get('left', 0)
    self.averaged = False
    # The batches of the next average; of the delayed average in flight; of lost
    # islands, in that average unless it is formed again; and to be read again.
    self._open, self._travels, self._doubtful, self._returned = (
      [Range(*each) for each in kept.get(name, ())] for name in _LISTS
    )

  def to_json(self) -> dict[str, Any]:
    """Returns the record that `begin` continues from."""
    lists = self._open, self._travels, self._doubtful, self._returned
    return {
      'read': [*self._read],
      'columns': [*map(list, self._columns.items())],
      'left': self._left,
      **{
        name: [*map(list, ranges)]
        for name, ranges in zip(_LISTS, lists, strict=True)
      },
    }

  def next(
    self, there: Sequence[int], rest: Container[int] = ()
  ) -> dict[int, tuple[int, int]]:
    """Returns the column and row of the batch that each slot reads next.

    Args:
      there: the slots that take the next step.
      rest: the slots of `there` that rest, and read their batch later.
    """
    self._lose_all_but(there)
    if not self._left or self._columns.keys() != set(there):
      self._grant(there)
    self._cells = {
      slot: (column, self._read[column])
      for slot, column in self._columns.items()
    }
    # The first slots read the returned batches, one range each.
    readers = (slot for slot in there if slot not in rest)
    for slot, each in zip(readers, self._returned, strict=False):
      self._cells[slot] = each.column, each.row
    return self._cells

  def expected(self, slot: int) -> tuple[int, int] | None:
    """Returns the cell that a slot reads after the step under way.

    It reads another one if islands join, or have ended, or if its term ends.
    While batches are read again, the result is `None`.
    """
    column, row = self._cells[slot]
    return None if self._returned else (column, row + 1)

  def complete(
    self,
    there: Sequence[int],
    rested: Container[int] = (),
    *,
    synced: bool = False,
    late: bool = False,
    arrived: bool | None = None,
  ) -> None:
    """Notes that a step is complete.

    Args:
      there: the slots that have completed the step.
      rested: the slots of `there` that have read nothing.
      synced: whether an average was formed, or sent if averages are `late`.
      late: whether averages are delayed.
      arrived: `True` if the delayed average that was applied had arrived,
        `False` if `there` formed it again, `None` if none was applied.
    """
    self._lose_all_but(there)
    returned = {(each.column, each.row): each for each in self._returned}
    for slot in there:
      if slot in rested:
        continue
      column, row = cell = self._cells[slot]
      if again := returned.pop(cell, None):
        if again.rows > 1:
          again = again._replace(row=row + 1, rows=again.rows - 1)
          returned[again.column, again.row] = again
      else:
        self._read[column] += 1
      self._add(Range(slot, column, row, 1))
    self._returned = [*returned.values()]
    self._left -= 1
    self.averaged = arrived is not None if late else synced
    if arrived is not None:
      self._returned += [] if arrived else self._doubtful
      self._travels, self._doubtful = [], []
    if len(there) == 1:  # Its work counts at once.
      self._open, self._travels = [], []
    if synced:
      self._travels += self._open if late else []
      self._open = []
    self._returned.sort()

  @property
  def may_enter(self) -> bool:
    """Whether islands may join after the step that is complete.

    An island that joins right after an average starts from the average, so no
    batch counts twice in the next one. It may join an island that is alone at
    any time. Without averages, it joins at the end of the leases.
    """
    is_alone = len(self._columns) == 1
    return self.averaged or is_alone or not self._left

  def lose(self, slots: Iterable[int]) -> None:
    """Notes that slots have lost their work since the last average."""
    lost = set(slots)
    self._returned += [each for each in self._open if each.slot in lost]
    self._doubtful += [each for each in self._travels if each.slot in lost]
    self._open = [each for each in self._open if each.slot not in lost]
    self._travels = [each for each in self._travels if each.slot not in lost]
    self._returned.sort()

  def _lose_all_but(self, there: Iterable[int]) -> None:
    have = {each.slot for each in self._open + self._travels}
    self.lose(have.difference(there))

  def _add(self, one: Range) -> None:
    """Adds a batch that counts with the next average."""
    for i, each in enumerate(self._open):
      if each[:2] == one[:2] and each.row + each.rows == one.row:
        self._open[i] = each._replace(rows=each.rows + 1)
        return
    self._open.append(one)

  def _grant(self, there: Sequence[int]) -> None:
    behind = sorted(self._slots, key=self._read.__getitem__)[: len(there)]
    others = (column for column in behind if column not in there)
    self._columns = {
      slot: slot if slot in behind else next(others) for slot in there
    }
    self._left = TERM


class Reader:
  """Reads batches of any column; fast if rows are read in order.

  A batch that is read twice in a row is the same object.

  Args:
    data: the run's data.
    stop: the number of rows.
  """

  def __init__(self, data: Data, stop: int):
    self._data, self._stop = data, stop
    self._open: dict[int, tuple[int, Iterator[Batch]]] = {}
    self._last: tuple[tuple[int, int] | None, Batch] = None, {}

  def read(self, column: int, row: int) -> Batch:
    """Returns a batch of one worker."""
    cell, (last, batch) = (column, row), self._last
    if cell == last:
      return batch
    at, batches = self._open.pop(column, (None, iter(())))
    if at != row:
      batches = self._data.batches([column], row, self._stop)
    if len(self._open) > 1:  # The island's own column and a leased one.
      self._open.pop(next(iter(self._open)))
    batch = next(batches)
    self._open[column] = row + 1, batches
    self._last = cell, batch
    return batch
