"""Repeats a run of islands in one process, from their logs.

The logs (see `rounds`) say which islands take part in which step, which one
begins with a copy of another's state, and which delayed means arrive.
Everything else is computed again by the same programs, whose messages stay in
memory. So if parameters differ from the run's, an island has made an error in
its computation.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
import dataclasses
import itertools
import pathlib
from typing import Any

import jax
import numpy as np

from selsync_jax.cluster.protocol.seats import FREE
from selsync_jax.config import ConfigError, RunError
from selsync_jax.data.course import Course
from selsync_jax.data.leases import Reader
from selsync_jax.devices.mappers import Mapper, Vmap
from selsync_jax.devices.slices import Slices
from selsync_jax.fields import completed, may_change
from selsync_jax.islands import rounds
from selsync_jax.islands.board import Board
from selsync_jax.islands.mapper import IslandMapper
from selsync_jax.islands.peers import Late, Peers
from selsync_jax.islands.program import cut
from selsync_jax.islands.rounds import Beginning, Round
from selsync_jax.runs import files, fingerprint, provenance, records
from selsync_jax.sync.budget import with_travel
from selsync_jax.sync.delay import Delayed
from selsync_jax.training import settings
from selsync_jax.training.setup import create_setup, Setup


def replay(folder: pathlib.Path) -> dict[str, int]:
  """Repeats a run, and compares the parameters after each of its rounds.

  Args:
    folder: folder of the islands' runs. An island is also replayed if its own
      run is missing.

  Returns:
    Number of compared digests of each island, by its name.

  Raises:
    ConfigError: if the folder does not hold a single run of islands, or the
      data or the model have changed since.
    RunError: if the run cannot be repeated from these logs; or if an island's
      parameters differ from those computed here.
  """
  found = sorted(path.parent for path in folder.glob(f'*/{rounds.ROUNDS}'))
  read = {workdir.name: rounds.read(workdir) for workdir in found}
  logs = {name: rows for name, rows in read.items() if rows}
  if not logs:
    raise ConfigError(f'{folder}: no folder in it has a {rounds.ROUNDS}')
  told = rounds.lineage(logs)
  beginnings = [(s, row['begins']) for s, row in told.items() if row['begins']]
  slots = _slots(beginnings)
  if strangers := sorted(logs.keys() - set(slots)):
    raise ConfigError(
      f'{folder}: {strangers[0]} is not one of the islands {", ".join(slots)}'
    )
  workdirs = {name: folder / name for name in logs}
  configs = {
    name: completed(records.read_config(workdir) or {})
    for name, workdir in workdirs.items()
  }
  setup = _setup(workdirs, configs, len(slots))
  _check(beginnings, setup)
  usual = configs[min(configs)]  # For islands whose runs are missing.
  islands = {
    name: _mapper(i, slots, folder / name, configs.get(name, usual))
    for i, name in enumerate(slots)
  }
  compared = collections.Counter(dict.fromkeys(logs, 0))
  for step, members, digests in _repeated(setup, islands, told):
    rows = {name: logs[name].get(step) for name in logs if name in members}
    if differ := [
      name
      for name, row in rows.items()
      if row and (row['members'], row['digest']) != (members, digests[name])
    ]:
      raise RunError(
        f'step {step}: {", ".join(differ)} had other parameters than here'
      )
    compared.update(name for name, row in rows.items() if row)
  return dict(compared)


def _setup(
  workdirs: Mapping[str, pathlib.Path],
  configs: Mapping[str, Mapping[str, Any]],
  workers: int,
) -> Setup:
  """Returns the setup of the islands with these folders.

  Raises:
    ConfigError: if their setups differ, or data or model have changed.
  """
  first, *others = workdirs
  for other in others:
    for field, here, there in files.differences(configs[first], configs[other]):
      if not may_change(field):
        raise ConfigError(
          f'{workdirs[first]} and {workdirs[other]} are different runs: '
          f'config.{field} is {here!r} in one, and {there!r} in the other'
        )
  recorded = settings.recorded(workdirs[first])
  setup = create_setup(recorded, Vmap(workers))
  fingerprint.check(workdirs[first], setup.problem.fingerprint, accept=False)
  return setup


def _mapper(
  index: int,
  slots: Sequence[str],
  workdir: pathlib.Path,
  config: Mapping[str, Any],
) -> IslandMapper:
  """Returns the mapper of an island, with its original number of devices."""
  devices = Slices(1, config['mesh.data'], config['mesh.fsdp'])
  peers = Board(len(slots)).peers(index)
  *_, processes = [1, *provenance.processes(workdir)]
  mapper = IslandMapper(len(slots), peers, devices, processes)
  mapper.check()
  return mapper


def _slots(beginnings: Iterable[tuple[int, Beginning]]) -> list[str]:
  """Returns the names of the run's islands, some of which may join late.

  Slots of islands that never joined get made-up names.

  Raises:
    RunError: if the run has resumed with other islands.
  """
  slots: list[str] = []
  for step, begins in beginnings:
    slots = slots or begins['slots']
    pairs = [*itertools.zip_longest(slots, begins['slots'])]
    if any(FREE != one != other != FREE for one, other in pairs):
      raise RunError(
        f'step {step}: the run continued with {", ".join(begins["slots"])} in '
        f'place of {", ".join(slots)}; such a run cannot be repeated'
      )
    slots = [one or other for one, other in pairs]
  return [name or f'slot {i}' for i, name in enumerate(slots)]


def _check(beginnings: Iterable[tuple[int, Beginning]], setup: Setup) -> None:
  """Raises `RunError` if this process cannot begin as the islands did."""
  own = None, setup.identity.hex(), setup.digest.hex()
  for step, begins in beginnings:
    if begins['program'] not in own:
      raise RunError(
        f'step {step}: the islands began it with another training step than '
        'this process; repeat a run with the code, the versions of packages, '
        'and the config that it had'
      )


def _repeated(
  setup: Setup, islands: Mapping[str, IslandMapper], told: Mapping[int, Round]
) -> Iterator[tuple[int, list[str], dict[str, int]]]:
  """Yields each step that has a row, with its islands and their digests.

  The mappers are in the order of the islands' slots.
  """
  slots, data, last = [*islands], setup.problem.data, max(told)
  kinds = {each.form: each for each in islands.values()}
  runs = {form: _step(setup, each) for form, each in kinds.items()}
  first = {
    form: dataclasses.replace(setup, mapper=each).initial()
    for form, each in kinds.items()
  }
  states = {name: first[each.form] for name, each in islands.items()}
  means = dict.fromkeys(slots)
  course = Course(len(slots), setup.config.pace == 'free')
  members, batches = [], {}
  late = setup.strategy.averager.steps_late > 0
  read = {name: Reader(data, last) for name in slots}
  with futures.ThreadPoolExecutor(len(slots)) as pool:
    for step in range(1, last + 1):
      if row := told.get(step):
        members = row['members']
        copies = row['begins']['copies'] if row['begins'] else {}
        states |= {
          name: _moved(states[source], islands[name])
          for name, source in copies.items()
        }
        course.leases.lose(map(slots.index, copies))
      arrived = row is not None and row['arrived'] is True
      readers = [*map(slots.index, row['readers'] if row else members)]
      course.next(readers)
      for name in members:
        batches[name] = course.batch(
          read[name], slots.index(name), batches.get(name)
        )
      board = Board(len(members), timeout=3600.0)
      peers = map(board.peers, range(len(members)))
      taking = [
        pool.submit(
          runs[islands[name].form],
          *(each, batches[name], states[name], means[name], arrived),
        )
        for name, each in zip(members, peers, strict=True)
      ]
      ended, _ = futures.wait(taking, return_when=futures.FIRST_EXCEPTION)
      if errors := [e for each in ended if (e := each.exception())]:
        board.close()  # Wakes waiting islands.
        raise errors[0]
      taken = [each.result() for each in taking]
      for name, (state, mean, _) in zip(members, taken, strict=True):
        states[name], means[name] = state, mean
      *_, synced = taken[0]
      course.complete(
        [*map(slots.index, members)],
        synced=synced,
        late=late,
        arrived=row['arrived'] if row else None,
      )
      if row and row['shares']:
        course.decide(dict(enumerate(row['shares'])))
      if row and row['travel'] is not None:
        for name in members:
          state = states[name]
          triggered = with_travel(state.trigger_state, row['travel'])
          states[name] = state.replace(trigger_state=triggered)
      if row:
        digests = {name: rounds.digest(states[name]) for name in members}
        yield step, members, digests


def _moved(state: Any, mapper: Mapper) -> Any:
  """Returns a state, moved to the devices of another island."""
  return jax.tree.map(
    lambda x: jax.device_put(x, mapper.sharding(x.shape)), state
  )


def _step(
  setup: Setup, mapper: IslandMapper
) -> Callable[..., tuple[Any, Any, bool]]:
  """Returns `run(peers, batch, state, mean, arrived) -> (state, mean, synced)`.

  It takes a step of one island, and carries the delayed mean that departs in
  the step. A mean that has `arrived` is applied; a mean that is due but has not
  arrived is computed.
  """
  rows = mapper.form
  step = cut(setup.worker_step(), rows)
  averager, travel = setup.strategy.averager, None
  if isinstance(averager, Delayed):
    travel = cut(averager.travel, rows.speaking)

  def run(peers, batch, state, mean, arrived):
    peers.late = _Arrived(mean) if arrived else None
    state, metrics = step(peers, state, batch)
    peers.late = None  # The next mean has not arrived.
    synced = bool(np.asarray(metrics['synced'])[0])
    if travel and synced and isinstance(averager, Delayed):
      message = rows.whole(averager.message(state.averager_state))
      mean = travel(peers, *message)
    return state, mean, synced

  return run


class _Arrived(Late):
  """A delayed mean that has arrived."""

  def __init__(self, mean: Any):
    self._leaves = jax.tree.leaves(mean)

  def arrive(self, compute: Callable[[Peers], Any]) -> Any:
    del compute
    return self._leaves

  def settle(self) -> None:
    """Does nothing: no mean is in flight."""
