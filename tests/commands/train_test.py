"""`python train.py`, run like a user runs it."""

import argparse
import json
import math
import pathlib
import signal
import sys

from jax._src import distributed
import pytest

import selsync_jax as ss
from selsync_jax.cluster import signals
from selsync_jax.commands import train as command
from selsync_jax.config import ConfigError
from selsync_jax.runs import history
from tests.support import short_runs
from tests.support.lines import raises
from tests.support.marks import slow

ROOT = pathlib.Path(__file__).parents[2]


def read(workdir):
  summary = json.loads((workdir / 'summary.json').read_text())
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return summary, [json.loads(line) for line in lines]


def test_train_in_python_returns_what_the_run_recorded(
  tmp_path, no_files, capsys
):
  fields = short_runs.FIELDS | {'steps': 4, 'schedule.warmup_epochs': 0.0}
  run = ss.train('digits', str(tmp_path), fields=fields)
  printed = capsys.readouterr().out
  assert 'step 4/4' in printed and 'test accuracy' in printed
  assert run.changes.shape == (4, 4)
  assert run.outcome == history.read(tmp_path).outcome == read(tmp_path)[0]
  assert (tmp_path / 'report.html').exists()
  again = ss.train('digits', tmp_path, fields=fields)
  assert again.outcome == run.outcome
  with pytest.raises(ConfigError, match=r'config\.steps=0: must be'):
    ss.train('digits', tmp_path, fields=fields | {'steps': 0})


@pytest.mark.parametrize(
  'fields, processes, line',
  [
    ({}, 2, 'train: runs in a single process, and this is one of 2; '),
    ({'device': 'gpu'}, 1, 'config.device=gpu: JAX has started'),
    ({'workers': 17}, 1, 'config.workers=17: mapper pmap needs one device'),
  ],
)
def test_train_in_python_says_before_any_work_what_this_process_cannot_do(
  fields, processes, line, tmp_path, monkeypatch
):
  """This process has 16 devices."""
  monkeypatch.setattr(distributed.global_state, 'num_processes', processes)
  with raises(ConfigError, f'{line}...'):
    ss.train('digits', tmp_path / 'run', fields=fields)
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_the_default_run_reaches_097_and_stays_local_most_of_the_time(
  default_run,
):
  summary, _ = read(default_run.workdir)
  assert summary['test_accuracy'] >= 0.97
  assert 0.5 <= summary['lssr'] <= 0.99
  assert (summary['method'], summary['workers']) == ('selsync', 4)


def test_the_summary_adds_up(short_run):
  summary, rows = read(short_run.workdir)
  steps, syncs = summary['steps'], summary['sync_steps']
  assert [row['step'] for row in rows] == list(range(1, steps + 1))
  assert sum(row['synced'] for row in rows) == syncs
  assert summary['local_steps'] == steps - syncs
  assert summary['lssr'] == pytest.approx(1 - syncs / steps)
  assert summary['samples'] == 2 * 1257
  # The convnet: 9 to 32 to 64 channels by 3x3, 1024 to 128 to 10, biases.
  params = 9 * 32 + 32 + 9 * 32 * 64 + 64 + 1024 * 128 + 128 + 128 * 10 + 10
  ring = 2 * 3 / 4
  assert summary['bytes_per_worker_bsp'] == steps * ring * 4 * params
  assert summary['bytes_per_worker'] == ring * 4 * (syncs * params + steps)
  last = rows[-1]
  assert last['validation_accuracy'] == summary['validation_accuracy']
  assert last['validation_loss'] == summary['validation_loss']
  assert sum('validation_accuracy' in row for row in rows) == 2


def test_a_step_synchronizes_just_when_a_worker_reaches_delta(short_run):
  config = json.loads((short_run.workdir / 'config.json').read_text())
  first, *rows = read(short_run.workdir)[1]
  changes = history.read(short_run.workdir).changes[1:]
  assert first['synced'] and first['relative_change'] is None  # It is infinite.
  for row, change in zip(rows, changes, strict=True):
    assert row['relative_change'] == change.max()
    assert row['synced'] == (row['relative_change'] >= config['sync']['delta'])


def test_the_learning_rate_warms_up_and_decays_by_the_optimizer_step(
  short_run,
):
  _, rows = read(short_run.workdir)
  lr = [row['lr'] for row in rows]
  warmup = 10
  assert lr[0] == 0 and lr[warmup] == pytest.approx(0.1)
  for step in range(warmup, 20):
    share = (step - warmup) / (20 - warmup)
    expected = 0.05 * (1 + math.cos(math.pi * share))
    assert lr[step] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize('name', ['short_run', slow('default_run')])
def test_what_the_user_sees_is_the_summary_and_nothing_strange(name, request):
  done = request.getfixturevalue(name)
  workdir = done.workdir
  summary, _ = read(workdir)
  assert f'{summary["test_accuracy"]:.4f}' in done.stdout
  for words in ('LSSR', 'bytes sent per worker', 'the same run under BSP'):
    assert words in done.stdout
  steps = summary['steps']
  assert f'step {steps}/{steps}' in done.stdout
  assert done.stdout.splitlines()[-1] == str(workdir / 'report.html')
  assert 'Traceback' not in done.stderr
  assert 'WARNING' not in done.stderr


def test_a_restart_begins_when_the_old_run_has_been_moved(
  tmp_path, monkeypatch
):
  reacts, said = [], []
  monkeypatch.setattr(signals, '_without', [''])
  monkeypatch.setattr(signals.Handler, 'start', lambda h: reacts.append(h))

  def stop(code, reason):
    said.append((code, reason))
    raise SystemExit(code)

  monkeypatch.setattr(signals, 'stop', stop)
  workdir = tmp_path / 'run'
  for began in range(2):
    workdir.mkdir()
    (workdir / 'config.json').touch()
    if not began:
      command.handle_signals(argparse.Namespace(restart=True, workdir=workdir))
    with pytest.raises(SystemExit):
      reacts[0]._react(signal.SIGTERM)
    workdir.rename(tmp_path / f'run.{began}')
  resumes = 'the same command without --restart resumes the run'
  assert said == [
    (130, 'stopped by SIGTERM before the run began'),
    (75, f'stopped by a signal; {resumes}'),
  ]


def test_recorders_do_not_see_the_secrets_of_a_command(monkeypatch):
  flags = ['--cluster_token=a', '--join', 'b', '--coordinator=localhost:1']
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(sys, 'argv', ['train.py', *flags])
  with pytest.raises(ConfigError):
    command.main(flags)
  assert ' '.join(sys.argv) == (
    'train.py --cluster_token=... --join ... --coordinator=localhost:1'
  )


@pytest.mark.parametrize(
  'flags, name',
  [
    ([], 'digits-selsync'),
    (['--config=configs/digits.py:bsp'], 'digits-bsp'),
    (['--config', 'configs/digits.py:bsp'], 'digits-bsp'),
    (['--config=configs/stdlib_gpt.py:bsp,smoke'], 'stdlib_gpt-bsp-smoke'),
  ],
)
def test_a_run_has_a_folder_named_after_its_config_and_method(
  flags, name, monkeypatch
):
  monkeypatch.chdir(ROOT)
  assert command.parse(flags).workdir == pathlib.Path('runs') / name


def test_flags_and_fields_are_read(monkeypatch, tmp_path):
  monkeypatch.chdir(ROOT)
  options = command.parse(
    [
      *('--config.seed', '5', '--noreport', '--config.optimizer.nesterov'),
      *('--restart', '--workdir', str(tmp_path), '--config.epochs=3.5'),
    ]
  )
  assert (options.restart, options.report, options.profile) == (
    True,
    False,
    False,
  )
  assert options.workdir == tmp_path and options.cluster_timeout == 60.0
  home = command.parse(['--workdir=~/runs/a']).workdir
  assert home == pathlib.Path.home() / 'runs' / 'a'
  config = options.settings.config
  assert (config.seed, config.epochs) == (5, 3.5)
  assert config.optimizer.nesterov is True


def test_the_default_config_is_found_from_any_folder(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  assert command.parse([]).settings.data.name == 'digits'


def test_a_workdir_whose_name_is_not_utf_8_is_refused_before_any_work(tmp_path):
  workdir = tmp_path / 'run\udcff'  # Python's form of the byte 0xff.
  line = f'--workdir={workdir}: must be UTF-8, which orbax needs'
  with raises(ConfigError, line):
    command.main([f'--workdir={workdir}'])
  assert not workdir.exists()


def test_a_workdir_that_cannot_be_written_is_refused_in_one_line(tmp_path):
  (tmp_path / 'file').touch()
  workdir = tmp_path / 'file' / 'run'
  fields = {'data.backend': 'numpy', 'mapper': 'vmap'}
  line = f'--workdir={workdir}: cannot be written: Not a directory'
  with raises(ConfigError, line):
    ss.train('digits', workdir, fields=fields)
