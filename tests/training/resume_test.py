"""Runs that resume, change, or find something wrong, in this process."""

import contextlib
import fcntl
import json
import pathlib
import shutil

import pytest

from selsync_jax.config import ConfigError
from selsync_jax.config import RunError
from selsync_jax.configs import digits
from selsync_jax.data.tfdata.in_memory import InMemoryData
from selsync_jax.runs import history
from selsync_jax.runs import manifest
from selsync_jax.runs import workdir as workdirs
from tests import damage
from tests import live_runs
from tests.session import make_once
from tests.training.short_runs import rows
from tests.training.short_runs import run
from tests.training.short_runs import STEPS


def checkpoint(workdir, step):
  return workdir / 'checkpoints' / str(step)


def largest_file(folder):
  return max(folder.rglob('*'), key=lambda p: p.is_file() and p.stat().st_size)


@pytest.fixture(scope='session')
def finished_once(data_dir):
  """The folder of a finished run; all that is read."""
  return make_once('finished', lambda folder: run(folder, data_dir))


@pytest.fixture
def finished(finished_once, tmp_path):
  """A copy of the finished run, to do something to."""
  return shutil.copytree(finished_once, tmp_path / 'run')


def test_a_finished_run_says_so_and_changes_nothing(finished, data_dir, capsys):
  before = {p: p.read_bytes() for p in finished.glob('*.json*')}
  summary = run(finished, data_dir)
  assert summary == json.loads((finished / 'summary.json').read_text())
  assert 'holds a finished run of 24 steps' in capsys.readouterr().out
  assert {p: p.read_bytes() for p in finished.glob('*.json*')} == before


def test_the_test_split_is_read_once_after_the_last_step(
  tmp_path, data_dir, monkeypatch
):
  read, evaluation = [], InMemoryData.evaluation

  def recorded(data, split, *args):
    read.append(split)
    return evaluation(data, split, *args)

  monkeypatch.setattr(InMemoryData, 'evaluation', recorded)
  summary = run(tmp_path, data_dir)
  assert read.index('test') == len(read) - 1
  assert not [name for row in rows(tmp_path) for name in row if 'test' in name]
  (tmp_path / 'summary.json').unlink()  # Killed before it was written.
  again = run(tmp_path, data_dir)
  scores = {name for name in summary if history.is_score(name)}
  assert {name: again[name] for name in scores} == {
    name: summary[name] for name in scores
  }
  assert {'test_loss', 'validation_loss'} <= scores
  assert read.count('test') == 2


def test_more_steps_go_on_where_the_run_ended(finished, data_dir, capsys):
  summary = run(finished, data_dir, steps=30)
  assert 'resuming from step 24' in capsys.readouterr().out
  assert summary['steps'] == 30
  assert [row['step'] for row in rows(finished)] == list(range(1, 31))


def test_restart_moves_the_old_run_aside(finished, data_dir):
  old = (finished / 'metrics.jsonl').read_bytes()
  for number in (1, 2):
    run(finished, data_dir, restart=True, steps=2)
    aside = finished.with_name(f'{finished.name}.{number}')
    assert (aside / 'metrics.jsonl').exists()
  first = finished.with_name(f'{finished.name}.1') / 'metrics.jsonl'
  assert first.read_bytes() == old
  assert len(rows(finished)) == 2


def test_a_refused_config_leaves_everything_as_it_was(
  finished, tmp_path, data_dir
):
  before = sorted(finished.iterdir())
  for workdir, restart in ((finished, True), (tmp_path / 'new', False)):
    with pytest.raises(ConfigError, match='larger than a chunk'):
      run(workdir, data_dir, restart=restart, batch_size=1000)
  assert sorted(finished.iterdir()) == before
  assert not (tmp_path / 'new').exists()


def test_another_config_is_refused_by_the_names_of_its_fields(
  finished, data_dir
):
  with pytest.raises(ConfigError) as error:
    run(finished, data_dir, sync__delta=0.2, batch_size=16)
  assert str(error.value) == (
    f'--workdir={finished} holds a run with another config: batch_size was '
    '32, now 16; sync.delta was 1.0, now 0.2; take another --workdir, or '
    '--restart'
  )
  assert json.loads((finished / 'config.json').read_text())['batch_size'] == 32


def test_fields_that_do_not_change_training_may_change(finished, data_dir):
  summary = run(
    finished,
    data_dir,
    log__every=5,
    checkpoint__every=3,
    checkpoint__keep=1,
    eval__batch_size=50,
    check_replicas=0,
  )
  assert summary['steps'] == STEPS


@pytest.mark.parametrize('restart', [False, True])
def test_two_runs_can_not_write_in_one_folder(restart, tmp_path, data_dir):
  workdir = tmp_path / 'run'
  with (
    workdirs.opened(workdir, digits.get_config(), restart=False),
    pytest.raises(ConfigError, match='another process is writing a run'),
  ):
    run(workdir, data_dir, restart=restart)
  assert list(tmp_path.iterdir()) == [workdir]


def test_a_folder_that_was_moved_before_it_was_claimed_is_refused(
  tmp_path, monkeypatch
):
  """As by a restart between the opening of the lock and the locking."""
  workdir = tmp_path / 'run'
  lock = fcntl.flock

  def flock(file, operation):
    workdir.rename(tmp_path / 'moved')
    lock(file, operation)

  monkeypatch.setattr(fcntl, 'flock', flock)
  opened = workdirs.opened(workdir, digits.get_config(), restart=False)
  with pytest.raises(ConfigError, match='another process'), opened:
    pass
  assert not (tmp_path / 'moved' / 'config.json').exists()


@pytest.mark.parametrize('folder', ['.', '..', 'inner/..'])
def test_restart_does_not_move_the_folder_it_runs_in(
  folder, tmp_path, monkeypatch, data_dir
):
  (tmp_path / 'run' / 'inner').mkdir(parents=True)
  monkeypatch.chdir(tmp_path / 'run')
  with pytest.raises(ConfigError) as error:
    run(pathlib.Path(folder), data_dir, restart=True)
  assert str(error.value) == (
    f'--workdir={folder}: --restart cannot move aside the folder that the '
    'command runs in'
  )
  assert list(tmp_path.iterdir()) == [tmp_path / 'run']


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(
  finished, data_dir, capsys
):
  whole = rows(finished)
  (finished / 'summary.json').unlink()
  file = largest_file(checkpoint(finished, 24))
  file.write_bytes(file.read_bytes()[:-1])
  largest_file(checkpoint(finished, 16)).unlink()
  run(finished, data_dir)
  said = capsys.readouterr()
  for step in (24, 16):
    assert f'checkpoint {step} is damaged' in said.err
    assert (finished / f'damaged-checkpoint-{step}').exists()
  assert 'resuming from step 8' in said.out
  for one, other in zip(rows(finished), whole, strict=True):
    for field in ('step', 'loss', 'relative_changes', 'synced', 'samples'):
      assert one[field] == other[field]


def results(workdir):
  fields = ('step', 'loss', 'relative_changes', 'synced', 'validation_loss')
  return [{k: row.get(k) for k in fields} for row in rows(workdir)]


def test_everything_damaged_at_once_is_mended_and_said(
  finished, data_dir, capsys
):
  whole = results(finished)
  (finished / 'damaged-checkpoint-24').mkdir()  # From an earlier time.
  damage.inflict(checkpoint(finished, 24) / 'manifest.json', 'deep')
  damage.inflict(checkpoint(finished, 16) / '_CHECKPOINT_METADATA', 'half')
  damage.inflict(finished / 'config.json', 'null')
  damage.inflict(finished / 'data.json', 'zeros')
  damage.inflict(finished / 'summary.json', 'half')
  metrics = finished / 'metrics.jsonl'
  one, two, *rest = metrics.read_text().splitlines(keepends=True)
  metrics.write_text(one + two[:9] + ''.join(rest))
  run(finished, data_dir)
  assert results(finished) == whole[:1] + whole[3:]
  said = capsys.readouterr()
  lines = said.err.splitlines()
  assert lines == [
    f'{finished}/config.json is damaged: the content has a wrong type; '
    'written again',
    f'checkpoint 24 is damaged ({checkpoint(finished, 24)}/manifest.json is '
    f'damaged: nested too deep); moved to {finished}/damaged-checkpoint-24.1',
    f'{metrics}: 2 of 16 rows up to step 16 are lost; nothing else is affected',
  ]
  assert f'{finished}/summary.json is damaged: not JSON' in said.out
  assert 'resuming from step 16' in said.out


@pytest.mark.parametrize('name', ['metrics.jsonl', 'workers.jsonl'])
def test_rows_of_a_run_survive_a_power_loss_up_to_the_last_checkpoint(
  name, finished, data_dir, capsys
):
  whole, file = results(finished), finished / name
  live_runs.go_back(finished, 16)
  lines = file.read_bytes().splitlines(keepends=True)
  unwritten = bytes(len(lines[17]))  # Its size was written, its content not.
  file.write_bytes(b''.join([*lines[:17], unwritten]))
  run(finished, data_dir)
  assert results(finished) == whole
  assert capsys.readouterr().err == ''


def test_damaged_values_per_worker_are_said_and_left_out(
  finished, data_dir, capsys
):
  whole, file = results(finished), finished / 'workers.jsonl'
  live_runs.go_back(finished, 16)
  one, two, *rest = file.read_bytes().splitlines(keepends=True)
  damaged = two.replace(two[-12:-8], b'AAAA')  # JSON, and base64 too.
  assert damaged != two
  file.write_bytes(b''.join([one, damaged, *rest]))
  run(finished, data_dir)
  assert capsys.readouterr().err == (
    f'{file}: 1 of 16 rows up to step 16 are lost; nothing else is affected\n'
  )
  whole[1]['relative_changes'] = None
  assert results(finished) == whole
  assert capsys.readouterr().err == (
    f'{file}: the values of 1 of 24 steps are lost or damaged; figures leave '
    'them out\n'
  )


@pytest.mark.slow
@pytest.mark.parametrize('kind', damage.DAMAGES)
def test_no_damage_to_any_file_loses_the_run(
  kind, finished_once, data_dir, tmp_path, capsys
):
  files = [
    path.relative_to(finished_once)
    for path in sorted(finished_once.rglob('*'))
    if path.is_file() and path.stat().st_size
  ]
  whole = results(finished_once)
  for number, file in enumerate(files):
    workdir = shutil.copytree(finished_once, tmp_path / str(number))
    damage.inflict(workdir / file, kind)
    renames = (file.name, kind) == ('config.json', 'flipped bit')
    with (
      pytest.raises(ConfigError, match='holds a run with another config')
      if renames
      else contextlib.nullcontext()
    ):
      run(workdir, data_dir)
    said = capsys.readouterr().err
    if results(workdir) != whole:
      assert file.name in ('metrics.jsonl', 'workers.jsonl')
      assert f'{workdir / file}: ' in said
    shutil.rmtree(workdir)


def test_a_flipped_bit_in_a_checkpoint_is_damage(finished, data_dir, capsys):
  (finished / 'summary.json').unlink()
  file = largest_file(checkpoint(finished, 24))
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(content)
  run(finished, data_dir)
  assert 'does not match its checksum' in capsys.readouterr().err


def test_without_an_intact_checkpoint_the_run_is_refused(finished, data_dir):
  (finished / 'summary.json').unlink()
  for step in (8, 16, 24):
    largest_file(checkpoint(finished, step)).unlink()
  for _ in range(2):  # It never starts over by itself.
    with pytest.raises(RunError, match=r'every checkpoint in .* was damaged'):
      run(finished, data_dir)
  assert len(rows(finished)) == STEPS


def test_a_run_of_an_earlier_version_is_refused_before_all_else(
  finished, data_dir
):
  record = checkpoint(finished, 24) / 'record' / 'metadata'
  record.write_text(record.read_text().replace('"format"', '"other"'))
  manifest.write(checkpoint(finished, 24))
  (finished / 'config.json').write_text('{}')  # Of an earlier version too.
  with pytest.raises(RunError) as error:
    run(finished, data_dir)
  assert str(error.value) == (
    f'{checkpoint(finished, 24)} was written by an earlier version '
    '(format 1), which this one cannot read; use that version, or start over '
    'with --restart'
  )
  assert run(finished, data_dir, restart=True, steps=1)['steps'] == 1


def test_a_checkpoint_holds_arrays_and_json_alone(finished):
  for path in checkpoint(finished, 24).rglob('*'):
    assert path.suffix not in {'.pkl', '.pickle', '.py', '.pyc', '.so'}
    if path.is_file():
      assert b'\x80\x04' not in path.read_bytes()[:2]  # A pickle's opening.


@pytest.mark.slow
def test_the_newest_and_the_best_checkpoints_are_kept(tmp_path, data_dir):
  run(tmp_path, data_dir, checkpoint__every=2, checkpoint__keep=2)
  steps = {int(p.name) for p in (tmp_path / 'checkpoints').iterdir()}
  scored = {
    row['step']: row['validation_loss']
    for row in rows(tmp_path)
    if 'validation_loss' in row
  }
  best = min(scored, key=scored.get)
  assert steps == {22, 24, best}


def test_a_crash_in_the_middle_of_a_line_costs_that_line_alone(
  finished, data_dir
):
  whole = rows(finished)
  live_runs.go_back(finished, 16)
  for name in ('metrics.jsonl', 'workers.jsonl'):
    with (finished / name).open('a') as file:
      file.write('{"step": 25, "lo')
  run(finished, data_dir)
  again = rows(finished)
  assert [row['step'] for row in again] == list(range(1, STEPS + 1))
  assert [row['loss'] for row in again] == [row['loss'] for row in whole]


def test_the_default_workdir_can_be_relative(tmp_path, data_dir, monkeypatch):
  monkeypatch.chdir(tmp_path)
  run(pathlib.Path('runs/here'), data_dir, steps=2)
  assert (tmp_path / 'runs/here/summary.json').exists()
