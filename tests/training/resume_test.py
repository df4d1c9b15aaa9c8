"""Runs that resume, or continue with changes, in this process."""

import contextlib
import fcntl
import json
import os
import pathlib
import queue
import shutil
import signal
import socket
import sys
import time

import pytest

from selsync_jax.cluster import signals
from selsync_jax.config import BusyError, ConfigError, Stopped
from selsync_jax.configs import digits
from selsync_jax.data import Data
from selsync_jax.runs import history, records
from selsync_jax.runs import workdir as workdirs
from selsync_jax.training import evaluation
from tests.support import live_runs
from tests.support.live_runs import contents
from tests.support.short_runs import rows, run, STEPS

LIVE = f'pid {os.getpid()} on {socket.gethostname()}'


@pytest.mark.parametrize('fields', [{}, {'steps': 4, 'workers': 2}], ids=str)
def test_a_finished_run_says_so_and_changes_nothing(fields, finished, capsys):
  before = contents(finished)
  summary = run(finished, **fields)
  assert summary == json.loads((finished / 'summary.json').read_text())
  assert 'holds a finished run of 24 steps' in capsys.readouterr().out
  assert contents(finished) == before


def test_the_test_split_is_read_once_after_the_last_step(tmp_path, monkeypatch):
  read, evaluation = [], Data.evaluation

  def recorded(data, split, *args):
    read.append(split)
    return evaluation(data, split, *args)

  monkeypatch.setattr(Data, 'evaluation', recorded)
  summary = run(tmp_path)
  assert read.index('test') == len(read) - 1
  assert not [name for row in rows(tmp_path) for name in row if 'test' in name]
  (tmp_path / 'summary.json').unlink()  # Killed before it was written.
  again = run(tmp_path)
  scores = {name for name in summary if history.is_score(name)}
  assert {name: again[name] for name in scores} == {
    name: summary[name] for name in scores
  }
  assert {'test_loss', 'validation_loss'} <= scores
  assert read.count('test') == 2


@pytest.mark.slow
def test_an_average_in_flight_after_the_last_step_is_in_the_scores(tmp_path):
  """A mean applied at once is an outer step without delay."""
  short = {'steps': 8, 'checkpoint__every': 8, 'sync__period': 8}
  on_time = run(tmp_path / 'on time', 'diloco', **short)
  late = {'sync__delay': {'steps': 3}}
  late = run(tmp_path / 'late', 'diloco', **short, **late)
  for name in ('validation_loss', 'test_loss'):
    assert late[name] == pytest.approx(on_time[name], rel=1e-4)
  assert late['sync_steps'] == on_time['sync_steps'] == 1


@pytest.mark.parametrize(
  'split, stops', [('validation', True), ('test', False)]
)
def test_a_signal_after_the_last_step_is_heard(
  split, stops, finished, monkeypatch
):
  """The run hears it while it saves and scores, an earlier handler later."""
  scores, heard = evaluation.Evaluator.scores, queue.Queue()

  def interrupted(evaluator, mean, of):
    if of == split:
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(0.1)
    return scores(evaluator, mean, of)

  live_runs.go_back(finished, 16)
  monkeypatch.setattr(evaluation.Evaluator, 'scores', interrupted)
  stopped = pytest.raises(Stopped, match='by a signal after step 24')
  with (
    signals.Handler(heard.put),
    stopped if stops else contextlib.nullcontext(),
  ):
    run(finished, eval__every_epochs=9.0)
  assert heard.empty() == stops
  assert (finished / 'summary.json').exists() != stops


def test_more_steps_continue_where_the_run_ended(finished, capsys):
  summary = run(finished, steps=30)
  assert 'resuming from step 24' in capsys.readouterr().out
  assert summary['steps'] == 30
  assert [row['step'] for row in rows(finished)] == list(range(1, 31))


@pytest.mark.slow
def test_every_backend_continues_with_the_same_batches(finished, tmp_path):
  for steps, backend in ((12, 'tf'), (24, 'auto')):
    run(tmp_path, steps=steps, data__backend=backend)
  losses = [[row['loss'] for row in rows(run)] for run in (tmp_path, finished)]
  assert losses[0] == losses[1]


def test_restart_moves_the_old_run_aside(finished):
  old = (finished / 'metrics.jsonl').read_bytes()
  for number in (1, 2):
    run(finished, restart=True, steps=2)
    aside = finished.with_name(f'{finished.name}.{number}')
    assert (aside / 'metrics.jsonl').exists()
  first = finished.with_name(f'{finished.name}.1') / 'metrics.jsonl'
  assert first.read_bytes() == old
  assert len(rows(finished)) == 2


def test_a_refused_config_leaves_everything_as_it_was(finished, tmp_path):
  before = sorted(finished.iterdir())
  for workdir, restart in ((finished, True), (tmp_path / 'new', False)):
    with pytest.raises(ConfigError, match='larger than a chunk'):
      run(workdir, restart=restart, batch_size=1000)
  assert sorted(finished.iterdir()) == before
  assert not (tmp_path / 'new').exists()


def test_another_config_is_refused_by_the_names_of_its_fields(finished):
  with pytest.raises(ConfigError) as error:
    run(finished, sync__delta=0.2, batch_size=16)
  assert str(error.value) == (
    f'--workdir={finished} holds a run with another config: batch_size was '
    '32, now 16; sync.delta was 1.0, now 0.2; choose another --workdir, or '
    '--restart'
  )
  assert json.loads((finished / 'config.json').read_text())['batch_size'] == 32


def test_a_field_that_a_version_did_not_have_has_its_default(finished):
  path = finished / 'config.json'
  config = json.loads(path.read_text())
  del config['accumulate'], config['init_from'], config['init_rename']
  del config['model']['dtype'], config['mesh']
  path.write_text(json.dumps(config))
  before = json.loads((finished / 'summary.json').read_text())
  _, scores = evaluation.evaluate(finished, 'last', 'test')
  assert scores == pytest.approx({k: before[k] for k in scores}, rel=1e-5)
  assert run(finished) == before
  with pytest.raises(ConfigError, match="dtype was 'float32', now 'bflo"):
    run(finished, model__dtype='bfloat16')


def test_fields_that_do_not_change_training_may_change(finished):
  summary = run(
    finished,
    log__every=5,
    checkpoint__every=3,
    checkpoint__keep=1,
    eval__batch_size=50,
    check_replicas_every=0,
  )
  assert summary['steps'] == STEPS


@pytest.mark.parametrize('restart', [False, True])
def test_two_runs_cannot_write_in_one_folder(restart, tmp_path):
  workdir = tmp_path / 'run'
  with (
    workdirs.opened(workdir, digits.get_config().to_dict(), restart=False),
    pytest.raises(BusyError, match=rf'writing a run.* \({LIVE}\)$'),
  ):
    run(workdir, restart=restart)
  assert list(tmp_path.iterdir()) == [workdir]


def test_a_folder_that_was_moved_before_it_was_claimed_is_refused(
  tmp_path, monkeypatch
):
  """For example by a restart between opening and locking the lock file."""
  workdir = tmp_path / 'run'
  lock = fcntl.flock

  def flock(file, operation):
    if pathlib.Path(file.name).parent == workdir:
      workdir.rename(tmp_path / 'moved')
    lock(file, operation)

  monkeypatch.setattr(fcntl, 'flock', flock)
  opened = workdirs.opened(
    workdir, digits.get_config().to_dict(), restart=False
  )
  with pytest.raises(BusyError, match='another process'), opened:
    pass
  assert not (tmp_path / 'moved' / 'config.json').exists()


@pytest.mark.parametrize('folder', ['.', '..', 'inner/..'])
def test_restart_does_not_move_the_folder_it_runs_in(
  folder, tmp_path, monkeypatch
):
  (tmp_path / 'run' / 'inner').mkdir(parents=True)
  monkeypatch.chdir(tmp_path / 'run')
  with pytest.raises(ConfigError) as error:
    run(pathlib.Path(folder), restart=True)
  assert str(error.value) == (
    f'--workdir={folder}: --restart cannot move aside the folder that the '
    'command runs in'
  )
  assert list(tmp_path.iterdir()) == [tmp_path / 'run']


@pytest.mark.slow
def test_the_newest_checkpoints_are_kept(tmp_path):
  run(tmp_path, checkpoint__every=2, checkpoint__keep=2)
  steps = {int(p.name) for p in (tmp_path / 'checkpoints').iterdir()}
  assert steps == {22, 24}


def test_the_default_workdir_can_be_relative(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  run(pathlib.Path('runs/here'), steps=2)
  assert (tmp_path / 'runs/here/summary.json').exists()


def test_restart_moves_no_folder_around_a_live_run(tmp_path):
  workdir = tmp_path / 'runs' / 'live'
  config = digits.get_config().to_dict()
  with workdirs.opened(workdir, config, restart=False):
    with pytest.raises(ConfigError, match=rf'cannot move .*live, .*{LIVE}'):
      run(tmp_path / 'runs', restart=True, steps=1)
    with pytest.raises(ConfigError, match=rf'a run in .*live \({LIVE}\)$'):
      run(workdir / 'inner', steps=1)
  assert workdir.exists() and not (tmp_path / 'runs.1').exists()
  assert not (workdir / 'inner' / 'config.json').exists()


def test_looking_for_another_process_blocks_no_run(tmp_path):
  """Islands that start at once below an old run's folder do so."""
  config = digits.get_config().to_dict()
  with workdirs.opened(tmp_path, config, restart=False):
    pass
  with (tmp_path / '.lock').open('rb') as lock:
    fcntl.flock(lock, fcntl.LOCK_SH)
    with workdirs.opened(tmp_path / 'inner', config, restart=False):
      pass


def test_a_run_that_was_moved_aside_may_continue_beside_the_new_one(tmp_path):
  config = digits.get_config().to_dict()
  with workdirs.opened(tmp_path / 'run', config, restart=False):
    pass
  with (
    workdirs.opened(tmp_path / 'run', config, restart=True),
    workdirs.opened(tmp_path / 'run.1', config, restart=False),
  ):
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.slow
def test_another_rule_for_what_is_not_finite_changes_no_bit(finished, tmp_path):
  whole, other = rows(finished), tmp_path / 'other'
  shutil.copytree(finished, other)
  live_runs.go_back(other, 8)
  run(other, on_nonfinite='skip')
  for one, again in zip(rows(other), whole, strict=True):
    assert [one[k] for k in ('step', 'loss')] == [
      again[k] for k in ('step', 'loss')
    ]


@pytest.mark.slow
def test_restart_on_a_link_moves_what_it_names_and_leaves_the_link(tmp_path):
  real, link = tmp_path / 'disk' / 'run', tmp_path / 'link'
  link.symlink_to(real)
  run(link, steps=1)
  before = records.read_config(real)
  run(link, restart=True, steps=2)
  assert link.resolve() == real
  assert records.read_config(tmp_path / 'disk' / 'run.1') == before
  assert records.read_config(real)['steps'] == 2


def test_the_folder_of_another_user_is_refused_as_it_is(finished):
  if os.geteuid():
    pytest.skip('only root can become another user')
  before = contents(finished)
  finished.chmod(0o755)
  source = (
    'import ast, os, pathlib, sys\n'
    'from selsync_jax.runs import workdir\n'
    'from selsync_jax.config import ConfigError\n'
    'os.setuid(65534)\n'
    'try:\n'
    '  with workdir.opened(pathlib.Path(sys.argv[1]), {}, False): pass\n'
    'except ConfigError as error: print(error)'
  )
  done = live_runs.run(sys.executable, '-c', source, str(finished))
  assert done.stdout.endswith('cannot be written: Permission denied\n'), done
  assert contents(finished) == before
