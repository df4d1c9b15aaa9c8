"""Runs that find damaged files, in this process."""

import contextlib
import json
import shutil

import pytest

import selsync_jax as ss
from selsync_jax.config import ConfigError, flat, RunError
from selsync_jax.fields import may_change
from selsync_jax.report import comparison, facts
from selsync_jax.runs import checkpoints, history, records
from selsync_jax.runs.history import Trial
from tests.support import damage, live_runs
from tests.support.short_runs import config, rows, run, STEPS


def checkpoint(workdir, step):
  return workdir / 'checkpoints' / str(step)


def largest_file(folder):
  return max(folder.rglob('*'), key=lambda p: p.is_file() and p.stat().st_size)


def results(workdir):
  fields = ('step', 'loss', 'relative_changes', 'synced', 'validation_loss')
  return [{k: row.get(k) for k in fields} for row in rows(workdir)]


def test_everything_damaged_at_once_is_mended_and_said(finished, capsys):
  whole = results(finished)
  (finished / 'damaged-checkpoint-24').mkdir()  # From an earlier damage.
  damage.inflict(checkpoint(finished, 24) / 'manifest.json', 'deep')
  damage.inflict(checkpoint(finished, 16) / '_CHECKPOINT_METADATA', 'half')
  damage.inflict(finished / 'config.json', 'null')
  damage.inflict(finished / 'data.json', 'zeros')
  damage.inflict(finished / 'summary.json', 'half')
  metrics = finished / 'metrics.jsonl'
  one, two, *rest = metrics.read_text().splitlines(keepends=True)
  metrics.write_text(one + two[:9] + ''.join(rest))
  run(finished)
  assert results(finished) == whole[:1] + whole[3:]
  said = capsys.readouterr()
  lines = said.err.splitlines()
  assert lines == [
    f'{finished}/config.json is damaged: Expected `object`, got `null`; '
    'written again',
    f'checkpoint 24 is damaged ({checkpoint(finished, 24)}/manifest.json is '
    f'damaged: nested too deep); moved to {finished}/damaged-checkpoint-24.1',
    f'{metrics}: 2 of 16 rows up to step 16 are lost; nothing else is affected',
  ]
  assert f'{finished}/summary.json is damaged: not JSON' in said.out
  assert 'resuming from step 16' in said.out
  assert (finished / 'damaged-checkpoint-24.1').exists()


METRICS, WORKERS = 'metrics.jsonl', 'workers.jsonl'
UNWRITTEN = bytes(99)  # Their size was written, not their content.


@pytest.mark.parametrize(
  'names, end',
  [
    ([METRICS], UNWRITTEN),
    ([WORKERS], UNWRITTEN),
    ([METRICS, WORKERS], b'{"step": 25, "lo'),
  ],
)
def test_rows_of_a_run_survive_a_power_loss_up_to_the_last_checkpoint(
  names, end, finished, capsys
):
  whole = results(finished)
  live_runs.go_back(finished, 16)
  for file in (finished / name for name in names):
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b''.join([*lines[:17], end]))
  run(finished)
  assert results(finished) == whole
  assert capsys.readouterr().err == ''


def test_damaged_values_per_worker_are_said_and_left_out(finished, capsys):
  whole, file = results(finished), finished / 'workers.jsonl'
  live_runs.go_back(finished, 16)
  one, two, *rest = file.read_bytes().splitlines(keepends=True)
  damaged = two.replace(two[-12:-8], b'AAAA')  # JSON, and base64 too.
  assert damaged != two
  file.write_bytes(b''.join([one, damaged, *rest]))
  run(finished)
  assert capsys.readouterr().err == (
    f'{file}: 1 of 16 rows up to step 16 are lost; nothing else is affected\n'
  )
  whole[1]['relative_changes'] = None
  assert results(finished) == whole
  assert capsys.readouterr().err == (
    f'{file}: the values of 1 of 24 steps are lost or damaged; figures leave '
    'them out\n'
  )


def is_other(file, damaged):
  """Whether a damaged config is a config, and identifies another run."""
  with contextlib.suppress(ValueError):
    old, new = (flat(json.loads(f.read_bytes())) for f in (file, damaged))
    return any(
      old.get(name) != new.get(name) and not may_change(name)
      for name in old.keys() | new.keys()
    )
  return False


@pytest.mark.slow
@pytest.mark.parametrize('kind', damage.DAMAGES)
def test_no_damage_to_any_file_loses_the_run(
  kind, finished_once, tmp_path, capsys
):
  # Only the checksums of array files are checked: two files stand for all.
  state = checkpoint(finished_once, STEPS) / 'state'
  arrays = [largest_file(state), state / '_METADATA']
  files = [
    path.relative_to(finished_once)
    for path in sorted(finished_once.rglob('*'))
    if path.is_file() and path.stat().st_size
    if 'state' not in path.parts or (kind in damage.BYTES and path in arrays)
  ]
  whole = results(finished_once)
  for number, file in enumerate(files):
    workdir = shutil.copytree(finished_once, tmp_path / str(number))
    damage.inflict(workdir / file, kind)
    # A flipped bit may leave a config, but of another run.
    renames = (file.name, kind) == ('config.json', 'flipped bit') and is_other(
      finished_once / file, workdir / file
    )
    with (
      pytest.raises(ConfigError, match='holds a run with another config')
      if renames
      else contextlib.nullcontext()
    ):
      run(workdir)
    said = capsys.readouterr().err
    if results(workdir) != whole:
      assert file.name in ('metrics.jsonl', 'workers.jsonl')
      assert f'{workdir / file}: ' in said
    shutil.rmtree(workdir)


def test_a_flipped_bit_in_a_checkpoint_is_damage(finished, capsys):
  (finished / 'summary.json').unlink()
  file = largest_file(checkpoint(finished, 24))
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(content)
  run(finished)
  assert 'does not match its checksum' in capsys.readouterr().err


def test_without_an_intact_checkpoint_the_run_is_refused(finished):
  (finished / 'summary.json').unlink()
  for step in (8, 16, 24):
    largest_file(checkpoint(finished, step)).unlink()
  for _ in range(2):  # It never starts over by itself.
    with pytest.raises(RunError, match=r'every checkpoint in .* was damaged'):
      run(finished)
  assert len(rows(finished)) == STEPS


def test_a_run_that_was_killed_while_it_removed_its_first_save_begins(
  finished, finished_once
):
  (finished / 'summary.json').unlink()
  for step in (8, 16):
    shutil.rmtree(checkpoint(finished, step))
  rest = checkpoint(finished, 24).rename(checkpoint(finished, 0))
  (rest / 'manifest.json').unlink()
  run(finished)
  assert results(finished) == results(finished_once)


def test_a_run_of_an_earlier_version_is_refused_before_all_else(finished):
  record = checkpoint(finished, 24) / 'record' / 'metadata'
  record.write_text(record.read_text().replace('"format"', '"other"'))
  checkpoints.write_manifest(checkpoint(finished, 24))
  (finished / 'config.json').write_text('{}')  # From an earlier version, too.
  with pytest.raises(RunError) as error:
    run(finished)
  assert str(error.value) == (
    f'{checkpoint(finished, 24)} was written by an earlier version '
    '(format 1), which this one cannot read; use that version, or start over '
    'with --restart'
  )
  assert run(finished, restart=True, steps=1)['steps'] == 1


def test_a_checkpoint_holds_arrays_and_json_alone(finished):
  for path in checkpoint(finished, 24).rglob('*'):
    assert path.suffix not in {'.pkl', '.pickle', '.py', '.pyc', '.so'}
    if path.is_file():
      assert b'\x80\x04' not in path.read_bytes()[:2]  # A pickle's opening.


@pytest.mark.slow
def test_a_damaged_last_row_changes_no_outcome(finished, tmp_path, capsys):
  whole, path = history.read(finished), finished / 'metrics.jsonl'
  path.write_bytes(path.read_bytes()[:-2] + b'\xff\n')
  damaged = history.read(finished)
  assert f'{path}: 1 damaged line is left out' in capsys.readouterr().err
  assert damaged.rows == whole.rows[:-1]
  assert facts.headline([damaged]) == facts.headline([whole])
  short = config()
  trial = Trial('selsync', 0.1, short.seed, finished, [], short)
  assert 'of the traffic of BSP' in comparison.write([trial], tmp_path).best


class Killed(BaseException):
  """Ends a run as abruptly as one process can."""


class Killing(contextlib.AbstractContextManager):
  """A writer that lets a session log one step."""

  def __init__(self, workdir, step, config):
    pass

  def write(self, row):
    raise Killed

  def __exit__(self, *exc):
    pass


def test_a_run_that_takes_steps_again_is_not_finished(finished):
  largest_file(checkpoint(finished, 24)).unlink()
  ss.register_writer(Killing)
  with pytest.raises(Killed):
    run(finished, log__to=('Killing',))
  assert history.read(finished).summary is None
  assert records.read_summary(finished) is None  # `compare` reads it.
  summary = run(finished)
  assert summary == history.read(finished).summary
  assert [row['step'] for row in rows(finished)] == [*range(1, STEPS + 1)]
