"""Faults of real processes, caused by real signals."""

import json
import os
import random
import shutil
import signal
import sys
import time

import numpy as np
import pytest

from selsync_jax.config import ConfigError, RunError
from tests.support import live_runs, private, short_runs
from tests.support.marks import slow

# Every process started here finds the tests' data.
pytestmark = pytest.mark.usefixtures('data_dir')


@pytest.mark.parametrize(
  'method, processes, lines', [('fedavg', 1, 40), ('selsync', 2, 10)]
)
@pytest.mark.slow
def test_a_run_killed_at_any_moment_ends_as_if_it_had_not_been(
  method, processes, lines, left_alone, tmp_path
):
  command = live_runs.command(method, processes, tmp_path)
  rng = random.Random(lines)
  live_runs.kill_at(command, tmp_path, lines, rng.uniform(0, 0.1), rng)
  assert 0 < len(live_runs.rows(tmp_path)) < live_runs.STEPS
  live_runs.finish(command)
  assert live_runs.differences(left_alone(method, processes), tmp_path) == []


@pytest.mark.slow
def test_a_run_killed_while_it_saves_resumes_from_the_checkpoint_before(
  left_alone, tmp_path
):
  command = live_runs.command('selsync', 1, tmp_path)
  child = live_runs.start(command)
  saving = '30.*tmp*'  # The second checkpoint, before it gets its name.
  while not list((tmp_path / 'checkpoints').glob(saving)):
    assert child.poll() is None
  child.kill()
  child.communicate(timeout=300)
  assert 'resuming from step 15' in live_runs.finish(command)
  assert live_runs.differences(left_alone('selsync', 1), tmp_path) == []


@pytest.mark.parametrize(
  'processes, number', [slow(1, signal.SIGINT), slow(2, signal.SIGTERM)]
)
def test_a_signal_loses_no_step(processes, number, left_alone, tmp_path):
  command = live_runs.command('selsync', processes, tmp_path)
  child = live_runs.start(command)
  live_runs.wait_for_rows(tmp_path, 20, child)
  # With several processes, only one of them gets it: the others must follow.
  os.kill(live_runs.trainers(child)[-1], number)
  output, _ = child.communicate(timeout=300)
  steps = len(live_runs.rows(tmp_path))
  assert 20 <= steps < live_runs.STEPS
  assert child.returncode == 75
  assert (
    f'train.py: stopped by a signal after step {steps}; '
    'the same command resumes the run'
  ) in output
  assert f'resuming from step {steps}' in live_runs.finish(command)
  assert live_runs.differences(left_alone('selsync', processes), tmp_path) == []


@pytest.mark.slow
def test_a_resize_does_the_same_on_any_number_of_processes(
  left_alone, tmp_path
):
  """Four workers on two processes continue as two, on one process or two."""
  after = []
  for processes in (1, 2):
    workdir = tmp_path / str(processes)
    shutil.copytree(left_alone('selsync', 2), workdir)
    live_runs.go_back(workdir, 60)
    command = live_runs.command(
      'selsync', processes, workdir, '--config.workers=2'
    )
    line = 'resuming from step 60 with 2 workers instead of 4'
    assert line in live_runs.finish(command)
    after.append(live_runs.rows(workdir)[60:])
  one, two = after
  assert len(one) == len(two) == live_runs.STEPS - 60
  for field in ('step', 'synced', 'samples', 'bytes_per_worker'):
    assert [row[field] for row in one] == [row[field] for row in two]
  for field in ('loss', 'relative_change'):
    np.testing.assert_allclose(
      [row[field] or 0 for row in one],  # The first change is infinite: null.
      [row[field] or 0 for row in two],
      rtol=1e-3,
    )


def test_a_read_only_workdir_is_reported_before_any_work(small_disk):
  workdir = small_disk('1m')
  small_disk.remount('ro')
  with pytest.raises(ConfigError) as error:
    short_runs.run(workdir)
  assert str(error.value) == (
    f'--workdir={workdir}: cannot be written: Read-only file system'
  )


@pytest.mark.slow
# Tensorstore may call back to a loop that orbax has closed.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_an_impossible_save_is_reported_before_the_first_step(small_disk):
  workdir = small_disk('1m')
  fields = {'steps': 3, 'model__num_filters': 2048}  # A checkpoint is 5 MB.
  with pytest.raises(RunError) as error:
    short_runs.run(workdir, **fields)
  assert str(error.value) == (
    'checkpoint: No space left on device; last good checkpoint: none'
  )
  assert not live_runs.rows(workdir)
  small_disk.remount('size=200m')
  assert short_runs.run(workdir, **fields)['steps'] == 3


# Every second reading of the clock is an hour ahead.
JUMPING = """
import itertools, runpy, sys, time

jumps, now = itertools.cycle([0, 3600]), time.time
time.time = lambda: now() + next(jumps)
runpy.run_path('train.py', run_name='__main__')
"""


@pytest.mark.slow
def test_a_clock_that_jumps_loses_nothing_but_the_save_under_way(
  left_alone, tmp_path
):
  command = live_runs.command('selsync', 1, tmp_path)
  flags = command[2:]
  jumping = [sys.executable, '-c', JUMPING, *flags]
  began = time.monotonic()
  code, lines = live_runs.outcome(live_runs.start(jumping))
  assert time.monotonic() - began < 60  # It does not wait for orbax's threads.
  assert code == 0 or 'last good checkpoint: ' in lines[-1]
  live_runs.finish(command)
  assert live_runs.differences(left_alone('selsync', 1), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
  # A checkpoint is 5 MB, weights are 0.6 MB.
  'size, full',
  [('6m', '{}/weights/100.safetensors'), ('7m', 'checkpoint')],
)
def test_a_run_whose_end_does_not_fit_on_the_disk_fails(size, full, small_disk):
  workdir = small_disk(size)
  flags = ('steps=100', 'checkpoint.every=50', 'checkpoint.keep=99')
  command = live_runs.command(
    'selsync', 1, workdir, *(f'--config.{flag}' for flag in flags)
  )
  code, lines = live_runs.outcome(live_runs.start(command))
  assert code == 1
  assert lines[-1] == (
    f'train.py: {full.format(workdir)}: No space left on device; '
    'last good checkpoint: step 50'
  )
  assert not (workdir / 'summary.json').exists()


@pytest.mark.slow
def test_a_full_disk_is_reported_and_the_last_checkpoint_stays_good(small_disk):
  workdir = small_disk('6m')  # A checkpoint is 5 MB.
  flags = ('steps=200', 'checkpoint.every=50', 'checkpoint.keep=99')
  command = live_runs.command(
    'selsync', 1, workdir, *(f'--config.{flag}' for flag in flags)
  )
  child = live_runs.start(command)
  output, _ = child.communicate(timeout=300)
  assert child.returncode == 1
  assert 100 <= len(live_runs.rows(workdir)) < 150  # Before the next save.
  line = output.splitlines()[-1]
  assert line.startswith('train.py: ')
  assert 'No space left on device' in line
  assert 'last good checkpoint: step' in line
  step = int(line.rsplit(' ', 1)[1])
  small_disk.remount('size=200m')
  assert f'resuming from step {step}' in live_runs.finish(command)
  summary = json.loads((workdir / 'summary.json').read_text())
  assert summary['steps'] == 200


@pytest.mark.slow
def test_a_run_needs_no_shared_memory(tmp_path):
  prefix = private.after('mount -t tmpfs -o ro none /dev/shm')
  command = live_runs.command('selsync', 2, tmp_path, '--config.steps=16')
  live_runs.finish([*prefix, *command])
  assert len(live_runs.rows(tmp_path)) == 16
