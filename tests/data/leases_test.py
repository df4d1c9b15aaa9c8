"""Every batch is read once, although islands join and leave."""

import collections
import json

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from selsync_jax.data import Data
from selsync_jax.data.arrays import ArrayDataset
from selsync_jax.data.assignment import Assignment
from selsync_jax.data.leases import Leases, Reader, TERM
from selsync_jax.data.protocol import unchanged
from tests.support.partitions import make_partition


@st.composite
def histories(draw):
  """The number of slots, whether means are late, and the events of some steps.

  An event names the islands that begin and complete the step, the island that
  resumes from another island's state before it, whether an average is formed,
  and whether a late average has arrived.
  """
  slots, late = draw(st.integers(1, 5)), draw(st.booleans())
  some = st.sets(st.integers(0, slots - 1), min_size=1)
  steps, there, copied = [], set(range(slots)), set()
  for _ in range(draw(st.integers(1, 60))):
    left = there
    if draw(st.booleans()):  # An island leaves in a step.
      left = draw(some) & there or there
    synced = draw(st.booleans())
    arrived = draw(st.sampled_from([None, True, False])) if late else None
    steps.append((there, left, copied, synced, arrived))
    copied = set()
    if draw(st.booleans()):  # Islands rejoin between steps.
      copied = draw(some) - left
    there = left | copied
  return slots, late, steps


@hypothesis.settings(max_examples=100)
@hypothesis.given(histories())
def test_every_batch_counts_once_or_is_read_again(history):
  slots, late, steps = history
  leases, model = Leases(slots), []
  own = collections.defaultdict(list)  # By slot, since the last average.
  travels = {}  # Batches in flight; whether their island still has them.
  for began, completed, copied, synced, arrived in steps:
    leases.lose(copied)
    cells = leases.next(sorted(began))
    assert len(set(cells.values())) == len(began)
    leases.complete(
      sorted(completed), synced=synced, late=late, arrived=arrived
    )
    for slot in own.keys() - (completed - copied):
      del own[slot]
    for slot, cell in travels:
      travels[slot, cell] &= slot in completed - copied
    for slot in completed:
      own[slot].append(cells[slot])
    if len(completed) == 1:  # A lone island's steps count at once.
      model += own.pop(slot)
      model += [cell for (_, cell), has in travels.items() if has]
      travels = {key: has for key, has in travels.items() if not has}
    if arrived is not None:
      model += [cell for (_, cell), has in travels.items() if arrived or has]
      travels = {}
    if synced:
      each = [(slot, cell) for slot in own for cell in own[slot]]
      if late:
        travels |= dict.fromkeys(each, True)
      else:
        model += [cell for _, cell in each]
      own.clear()
    kept, leases = leases.to_json(), Leases(slots)
    leases.begin(0, json.loads(json.dumps(kept)))  # Like after a kill.
  assert len(set(model)) == len(model)
  leases.next(sorted(completed))
  kept = leases.to_json()
  read = {(i, row) for i in range(slots) for row in range(kept['read'][i])}
  again = cells_of(kept['returned'])
  waits = {cell for slot in own for cell in own[slot]}
  waits |= {cell for _, cell in travels}
  assert waits == cells_of(kept['open'] + kept['travels'] + kept['doubtful'])
  assert sorted([*model, *again, *waits]) == sorted(read)


def cells_of(ranges):
  """The columns and rows of batches."""
  return {
    (column, row + i) for _, column, row, rows in ranges for i in range(rows)
  }


def run(leases, there, steps):
  """Takes steps with an average after each; returns the rows read by column."""
  for _ in range(steps):
    leases.next(there)
    leases.complete(there, synced=True)
  return leases.to_json()['read']


def test_with_all_islands_each_reads_its_own_part():
  leases = Leases(3)
  leases.begin(7, None)
  assert leases.next([0, 1, 2]) == {0: (0, 7), 1: (1, 7), 2: (2, 7)}
  assert run(leases, [0, 1, 2], 2 * TERM) == [7 + 2 * TERM] * 3


def test_while_islands_are_missing_no_part_stays_behind():
  leases = Leases(5)
  for term in range(1, 40):
    read = run(leases, [0, 3], TERM)
    assert sum(read) == 2 * term * TERM
    assert max(read) - min(read) <= TERM


@pytest.mark.parametrize('late', [False, True])
def test_islands_enter_after_an_average_or_at_the_end_of_the_leases(late):
  leases, entries = Leases(2), []
  for step in range(1, 2 * TERM + 1):
    leases.next([0, 1])
    arrived = True if late and step == 9 else None
    leases.complete([0, 1], synced=step == 7, late=late, arrived=arrived)
    entries += [step] if leases.may_enter else []
  assert entries == [9 if late else 7, TERM, 2 * TERM]


@pytest.mark.parametrize('late', [False, True])
def test_steps_of_an_island_alone_count_at_once(late):
  """So others may join at any time and receive the computed batches."""
  leases = Leases(2)
  for there in [0, 1], [0], [0]:
    leases.next(there)
    leases.complete(there, synced=len(there) == 1, late=late)
    assert leases.may_enter == (len(there) == 1)
  assert leases.next([0, 1]) == {0: (0, 2), 1: (1, 1)}
  leases.complete([1])  # The first ends after the other has joined.
  assert leases.next([1]) == {1: (0, 2)}


def test_a_reader_reads_what_the_worker_of_a_column_would():
  numbers = {'features': np.arange(60.0)[:, None]}
  dataset = ArrayDataset(
    'numbers', 'regression', 1, {'train': numbers}, unchanged
  )
  partition = make_partition('seldp', 60, 3, 4, 0)
  data = Data(dataset, Assignment(partition, dataset.order, None, 4, 0))
  reader = Reader(data, 12)
  for column, row in [(0, 2), (0, 3), (2, 5), (0, 4), (1, 5), (2, 6), (0, 9)]:
    (expected,) = data.batches([column], row, row + 1)
    found = reader.read(column, row)
    np.testing.assert_array_equal(found['features'], expected['features'])
