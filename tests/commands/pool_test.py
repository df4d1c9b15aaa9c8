"""The processes of a comparison: what each leaves, and how they end."""

import signal
import time

import pytest

from selsync_jax.cluster import signals
from selsync_jax.commands import pool
from selsync_jax.commands import trials


def one_trial(out, rate, *flags):
  """A short run of BSP, which starts without TensorFlow."""
  grid = trials.list_trials(
    'digits',
    [
      '--config.data.backend=numpy',
      '--config.mapper=vmap',
      '--config.workers=2',
      '--config.steps=2',
      '--config.schedule.warmup_epochs=0.0',
      *flags,
    ],
    ['bsp'],
    {},
    [lambda _: rate],
    1,
    out,
  )
  return grid[0]


@pytest.mark.slow
def test_a_trial_is_a_process_that_writes_a_report_and_a_log(
  tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)  # The package is found from any folder.
  trial = one_trial(tmp_path, 0.1)
  pool.Processes(1).run(trial)
  assert trial.is_done
  log = (trial.workdir / 'train.log').read_text()
  assert log.splitlines()[-1] == str(trial.workdir / 'report.html')


@pytest.mark.slow
def test_a_trial_that_diverges_leaves_no_summary(tmp_path):
  """Its line is the last: libraries print nothing as the process ends."""
  trial = one_trial(tmp_path, 1e20)
  file = tmp_path / 'mine.py'
  file.write_text(
    'import atexit\nfrom selsync_jax.configs import digits\n'
    'atexit.register(print, "goodbye")\nget_config = digits.get_config\n'
  )
  trial.flags.append(f'--config={file}:bsp')
  pool.Processes(1).run(trial)
  assert not trial.is_done
  *_, last = (trial.workdir / 'train.log').read_text().splitlines()
  assert 'is not finite' in last


def test_a_trial_that_fails_ends_the_comparison_with_its_code(tmp_path):
  trial = one_trial(tmp_path, 0.1)
  trial.flags.append('--config.workers=0')
  with pytest.raises(pool.TrialFailed) as error:
    pool.Processes(1).run(trial)
  assert error.value.code == 2
  assert str(error.value) == (
    f'{trial.workdir}: train: config.workers=0: must be in [1, 4096]'
  )


def test_after_a_signal_no_trial_begins_and_the_comparison_is_resumable(
  tmp_path,
):
  """The trial that ran may have finished all the same, with code 0."""
  trial = one_trial(tmp_path, 0.1)
  processes = pool.Processes(1)
  assert not processes.signal(signal.SIGINT)
  with pytest.raises(pool.TrialFailed) as error:
    pool.run_all([trial], 1, processes, processes.run)
  assert error.value.code == signals.RESUMABLE
  assert str(error.value) == (
    f'{trial.workdir}: stopped by a signal; the same command resumes the runs'
  )


@pytest.mark.slow
def test_a_trial_that_has_done_enough_is_stopped_and_can_resume(tmp_path):
  trial = one_trial(tmp_path, 0.1, '--config.steps=1000000')
  pool.Processes(1).run(trial, lambda: trial.share_done > 0)
  *_, last = (trial.workdir / 'train.log').read_text().splitlines()
  assert 'stopped by a signal after step' in last and not trial.is_done


@pytest.mark.slow
def test_jobs_run_at_a_time_and_one_that_fails_ends_the_others(tmp_path):
  """The second fails once the first has logged a step; the third never runs."""
  queue = [
    one_trial(tmp_path / name, 0.1, '--config.steps=1000000') for name in 'abc'
  ]
  long, bad, never = queue
  bad.flags.append('--config.workers=0')

  def run(trial):
    while trial is bad and not long.share_done:
      time.sleep(0.02)
    processes.run(trial)

  with (
    pool.Processes(2) as processes,
    pytest.raises(pool.TrialFailed, match=f'^{bad.workdir}: '),
  ):
    pool.run_all(queue, 2, processes, run)
  log = (long.workdir / 'train.log').read_text()
  assert 'train: stopped by a signal after step' in log
  assert 0 < long.share_done < 1 and not never.workdir.exists()
