"""Runs of the trainer whose workers are islands."""

from concurrent import futures
import json
import shutil

import jax
import numpy as np
import pytest

from selsync_jax.config import ConfigError, RunError
from selsync_jax.devices import backend
from selsync_jax.devices.slices import Slices
from selsync_jax.islands import participants, resuming, rounds
from selsync_jax.islands.board import Board
from selsync_jax.islands.mapper import IslandMapper
from selsync_jax.islands.replay import replay
from selsync_jax.islands.resuming import Takers
from selsync_jax.runs import checkpoints, records, weights
from selsync_jax.runs.checkpoints import Choice
from selsync_jax.training.setup import Setup
from selsync_jax.training.train import train_and_evaluate
from tests.support import island_runs, live_runs, short_runs

N, SEEN = 2, ('synced', 'samples', 'bytes_per_worker')
SCORES = 'validation_loss', 'test_loss', 'test_accuracy'
DEVICES = {'meshes': ((2, 2), (1, 4)), 'model__num_filters': 32}
"""Settings that split the larger kernel differently on each island."""
FOUR = {'meshes': ((1, 1),) * 4}
LATE = {'sync__delay': {'steps': 3, 'keep': 0.5, 'extrapolate': 0.5}}


@pytest.fixture
def train(tmp_path, one_saves_at_a_time):
  """Trains islands in threads; returns the summary of each."""

  def train(
    method,
    folder='islands',
    decays=(1e-4,) * 4,
    sources=(None,) * 4,
    meshes=((1, 1),) * N,
    **fields,
  ):
    workers = len(meshes)

    def config_of(i):
      data, fsdp = meshes[i]
      own = {'mapper': 'mesh', 'mesh__data': data, 'mesh__fsdp': fsdp}
      own |= {'optimizer__weight_decay': decays[i], 'init_from': sources[i]}
      own['workers'] = workers
      return short_runs.config(method, **fields | own)

    return island_runs.train(tmp_path / folder, config_of, workers)

  return train


def values(workdir, names):
  """Values in the rows of a run, by column."""
  rows = short_runs.rows(workdir)
  return {name: np.array([row[name] for row in rows]) for name in names}


def assert_repeated(folder):
  """Repeats the run of islands, and compares it with all their logs."""
  compared = replay(folder)
  (count,) = {*compared.values()}
  assert count == len(rounds.read(folder / '0')) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
  'method, fields',
  [
    ('selsync', {}),
    ('selsync', LATE | FOUR),
    ('diloco', {'sync__period': 4}),
    ('selsync', LATE | DEVICES),
    ('micro', DEVICES),
  ],
)
def test_islands_train_as_the_workers_of_one_program(
  method, fields, train, tmp_path
):
  each = train(method, **fields)
  workers = len(each)
  fields = {name: x for name, x in fields.items() if name != 'meshes'}
  fields['workers'] = workers
  one = short_runs.run(tmp_path / 'one', method, **fields)
  folders = [tmp_path / 'islands' / f'{i}' for i in range(workers)]
  seen = values(tmp_path / 'one', SEEN)
  losses = values(tmp_path / 'one', ['loss'])['loss']
  saved = live_runs.arrays(tmp_path / 'one', short_runs.STEPS)
  rows = [live_runs.arrays(folder, short_runs.STEPS) for folder in folders]
  for (name, whole), *parts in zip(saved, *rows, strict=True):
    assert [part[0] for part in parts] == [name] * workers
    found = np.concatenate([part[1] for part in parts])
    np.testing.assert_allclose(found, whole, atol=2e-6, err_msg=name)
  for folder, summary in zip(folders, each, strict=True):
    jax.tree.map(np.testing.assert_array_equal, values(folder, SEEN), seen)
    own = values(folder, ['loss'])['loss']
    np.testing.assert_allclose(own, losses, atol=2e-6)
    for name in SCORES:
      np.testing.assert_allclose(summary[name], one[name], atol=2e-6)
  assert each[0]['test_loss'] == each[1]['test_loss']
  assert_repeated(tmp_path / 'islands')


@pytest.mark.slow
def test_they_resume_from_the_newest_checkpoint_that_all_have(
  train, tmp_path, capsys
):
  fields = LATE | {'sync__period': 3}  # One arrives as the next departs.
  train('local_sgd', 'whole', **fields)
  shutil.copytree(tmp_path / 'whole', tmp_path / 'parted')
  # One was killed before it had saved step 16. At 8, a mean is in flight.
  for i, step in enumerate((16, 8)):
    live_runs.go_back(tmp_path / 'parted' / f'{i}', step)
  capsys.readouterr()
  train('local_sgd', 'parted', **fields)
  said = capsys.readouterr()
  assert said.out.count('resuming from step 8') == N
  assert said.err.startswith('checkpoint 16 is not on all islands; moved to ')
  for i in range(N):
    one, other = (tmp_path / name / f'{i}' for name in ('whole', 'parted'))
    for (name, left), (_, right) in zip(
      *(live_runs.arrays(run, short_runs.STEPS) for run in (one, other)),
      strict=True,
    ):
      np.testing.assert_array_equal(left, right, err_msg=name)
    assert values(one, SEEN)['synced'].tolist() == (
      values(other, SEEN)['synced'].tolist()
    )
  assert_repeated(tmp_path / 'parted')


@pytest.mark.parametrize(
  'takers, chosen',
  [
    # It died with the coordinator, when only it knew that all had saved:
    # the islands that have repeated the step determine it.
    (
      ({5: 3, 4: 3, 0: 3}, {5: 2, 4: 3}, {5: 2, 4: 3}),
      [Choice(5, b'1'), Choice(5), Choice(5)],
    ),
    # It was taken for an island that joined, whose copy is as good as any.
    (
      ({6: 3, 4: 3}, {6: 3, 8: 1}, {6: 3}),
      [Choice(8, b'1'), Choice(8), Choice(8, b'1')],
    ),
    # The first has rejoined with a copy of the second's.
    (
      ({8: (1, 1)}, {8: (1, 1)}, {}),
      [Choice(8, b'1'), Choice(8), Choice(8, b'1')],
    ),
    # Two and two have continued without each other, to the same step.
    (
      ({8: (2, -1, 1), 4: 4}, {8: (2, -1, 1)}, *[{8: (2, -1, 2)}] * 2),
      [Choice(8), Choice(8), Choice(8, b'0'), Choice(8, b'0')],
    ),
    # The third has not come in time.
    (({6: 3, 4: 3}, {6: 3}), [Choice(6), Choice(6)]),
  ],
)
def test_all_go_on_from_the_newest_checkpoint_that_can_be_of_all(
  takers, chosen, tmp_path, monkeypatch
):
  monkeypatch.setattr(
    participants, 'takers', lambda path: Takers(*json.loads(path.read_text()))
  )
  monkeypatch.setattr(
    checkpoints, 'packed', lambda path: path.parent.name.encode()
  )
  board = Board(len(takers))

  def choose(i):
    folder = tmp_path / f'{i}'
    folder.mkdir()
    for step, number in takers[i].items():
      line = number if isinstance(number, tuple) else (number,)
      (folder / f'{step}').write_text(json.dumps(line))
    islands = island_runs.participants(board.peers(i), folder)
    return islands.choose(folder.iterdir())

  with futures.ThreadPoolExecutor(len(takers)) as pool:
    assert [*pool.map(choose, range(len(takers)))] == chosen


def test_a_rehearsal_that_was_killed_on_one_of_them_is_a_beginning(tmp_path):
  board = Board(2)

  def choose(i):
    islands = island_runs.participants(board.peers(i), tmp_path)
    return islands.choose(iter([tmp_path / '0'][i:]))

  with futures.ThreadPoolExecutor(2) as pool:
    assert [*pool.map(choose, range(2))] == [Choice(-1)] * 2


@pytest.mark.slow
def test_a_finished_run_is_one_for_all_of_them_or_for_none(train, tmp_path):
  folder = tmp_path / 'islands' / '0'
  first = train('selsync', steps=8)
  (folder / records.SUMMARY).unlink()
  again = train('selsync', steps=8)
  for name in SCORES:
    assert [each[name] for each in again] == [each[name] for each in first]
  # An island's checkpoint has its own state alone.
  shutil.rmtree(folder / weights.FOLDER)
  with pytest.raises(ConfigError, match='the state of one island of 2; such a'):
    weights.read(folder, 8)
  with pytest.raises(ConfigError, match='=3: this run has 2 islands; to c'):
    train('selsync', meshes=((1, 1),) * 3, steps=16)


@pytest.mark.slow
def test_they_refuse_to_go_on_from_nothing_in_common(train, tmp_path):
  train('selsync', steps=8)
  shutil.rmtree(tmp_path / 'islands' / '1' / 'checkpoints')
  with pytest.raises(RunError, match='in common: 0 step 8, 1 none; restore'):
    train('selsync')


def test_what_is_not_one_run_is_refused(train, tmp_path):
  with pytest.raises(
    RunError, match=r'^island 1 has other data or initial weights than island'
  ):
    train('selsync', decays=(1e-4, 0.1))
  sources = tmp_path / 'a.npz', tmp_path / 'b.npz'
  for i, path in enumerate(sources):
    np.savez(path, **{'params/Dense_1/bias': np.full(10, i, np.float32)})
  with pytest.raises(
    RunError, match=r'^island 1 has other data or initial wei'
  ):
    train('selsync', sources=[str(path) for path in sources])
  with pytest.raises(
    ConfigError, match=r'config\.workers=3: this run has 2 islands'
  ):
    IslandMapper(3, Board(2).peers(0))
  with pytest.raises(
    ConfigError, match=r'config\.mesh: an island of 64 devices sees 16 '
  ):
    IslandMapper(2, Board(2).peers(0), Slices(1, data=64)).check()


def test_what_does_not_fit_is_refused_before_it_prepares(tmp_path, monkeypatch):
  """Also before the others hear that it asks to be admitted."""
  peers = Board(N).peers(0)
  islands = island_runs.participants(peers, tmp_path)
  monkeypatch.setattr(type(peers), 'prepares', True)
  monkeypatch.setattr(backend, 'memory', lambda: 10.0)
  monkeypatch.delattr(Setup, 'initial')  # Preparing begins with it.
  config = short_runs.config(workers=N, mapper='auto')
  with (
    pytest.raises(
      ConfigError, match=r'^config\.model: the parameters of a wor'
    ),
  ):
    train_and_evaluate(config, tmp_path, participants=islands)


def test_of_two_with_one_state_the_one_that_was_alone_has_the_original(
  tmp_path,
):
  """The other island joined right after the checkpoint, and got a copy."""

  def record(islands, index):
    peers = Board(islands).peers(index)
    return island_runs.participants(peers, tmp_path).record()

  assert 'original' not in record(2, 1)
  assert record(1, 0)['original'] == 0
  board = Board(2, timeout=20)

  def go_on(index):
    takers = {7: Takers(1, original=1)}
    pack, advice = lambda step: b'packed', ''
    return resuming.agree(board.peers(index), takers, pack, advice)

  with futures.ThreadPoolExecutor(2) as pool:
    found = [*pool.map(go_on, range(2))]
  copies = {'0': '1'}
  assert found == [(7, b'packed', copies), (7, None, copies)]
