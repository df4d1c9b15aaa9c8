"""The processes of a comparison: their output, and how they end."""

import os
import pathlib
import signal
import sys
import time

import pytest

from selsync_jax.cluster import signals
from selsync_jax.commands import pool, trials
from selsync_jax.config import RunError
from selsync_jax.runs import provenance, workdir
from tests.support import live_runs


def one_trial(out, rate, *flags, code=''):
  """A short run of BSP, which starts without TensorFlow.

  If there is code, its config file runs the code.
  """
  (trial,) = trials.list_trials(
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
    out,
    learning_rates=[lambda _: rate],
  )
  if code:
    file = out / 'mine.py'
    file.parent.mkdir(exist_ok=True)
    own = 'from selsync_jax.configs import digits\n'
    file.write_text(f'{own}{code}\nget_config = digits.get_config\n')
    trial.flags.append(f'--config={file}:bsp')
  return trial


@pytest.mark.slow
def test_a_trial_is_a_process_that_writes_a_report_and_a_log(
  tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)  # The package is found from any folder.
  trial = one_trial(tmp_path, 0.1)
  with pool.Processes(1) as processes:
    processes.run(trial)
  assert trial.is_done
  log = (trial.workdir / 'train.log').read_text()
  assert log.splitlines()[-1] == str(trial.workdir / 'report.html')


@pytest.mark.slow
def test_trials_of_a_job_are_forks_of_a_process_with_all_imports(tmp_path):
  """The config is read before a command imports anything."""
  code = (
    'import os, sys\nprint(os.getpid(), os.getppid(), "jax" in sys.modules)'
  )
  queue = [one_trial(tmp_path / name, 0.1, code=code) for name in 'ab']
  with pool.Processes(1) as processes:
    for trial in queue:
      processes.run(trial)
  first, second = (
    (trial.workdir / 'train.log').read_text().split()[:3] for trial in queue
  )
  assert first[0] != second[0] and first[1:] == second[1:]
  assert first[2] == 'True' and all(trial.is_done for trial in queue)
  (session,) = provenance.sessions(trial.workdir)
  assert f'selsync_jax train {" ".join(trial.flags)}' in session['command']


@pytest.mark.slow
def test_a_trial_ends_and_can_resume_if_its_forking_process_is_killed(tmp_path):
  code = 'import os\nprint(os.getppid())'
  trial = one_trial(tmp_path, 0.1, '--config.steps=1000000', code=code)
  log = trial.workdir / 'train.log'

  def kill():
    if trial.share_done:
      os.kill(int(log.read_text().split()[0]), signal.SIGKILL)

  with (
    pytest.raises(RunError, match=f'^{log}: the process that starts the runs '),
    pool.Processes(1) as processes,
  ):
    processes.run(trial, kill)
  workdir.wait(trial.workdir)  # The trial saves its state.
  assert 'stopped by a signal after step' in log.read_text()


@pytest.mark.slow
def test_a_trial_that_diverges_leaves_no_summary(tmp_path):
  """The trial's line is the last: libraries print nothing at the exit."""
  code = 'import atexit\natexit.register(print, "goodbye")'
  trial = one_trial(tmp_path, 1e20, code=code)
  with pool.Processes(1) as processes:
    processes.run(trial)
  assert not trial.is_done
  *_, last = (trial.workdir / 'train.log').read_text().splitlines()
  assert 'is not finite' in last


def test_after_a_signal_no_trial_begins_and_the_comparison_is_resumable(
  tmp_path,
):
  """The running trial may still have finished, with code 0."""
  trial = one_trial(tmp_path, 0.1)
  processes = pool.Processes(1)
  assert not processes.signal(signal.SIGINT)
  with pytest.raises(pool.TrialFailed) as error:
    processes.run_all([trial])
  assert error.value.code == signals.RESUMABLE
  assert str(error.value) == (
    f'{trial.workdir}: stopped by a signal; the same command resumes the runs'
  )


@pytest.mark.slow
def test_a_trial_that_a_signal_kills_as_it_begins_is_resumable(tmp_path):
  """No handler is installed yet; a config file may install the default one."""
  code = (
    'import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n'
    'print("began", flush=True)\ntime.sleep(1000)'
  )
  trial = one_trial(tmp_path, 0.1, code=code)
  log = trial.workdir / 'train.log'

  def interrupt():
    return bool(log.read_text()) and not processes.signal(signal.SIGINT)

  with (
    pytest.raises(pool.TrialFailed, match=pool.STOPPED) as error,
    pool.Processes(1) as processes,
  ):
    processes.run(trial, interrupt)
  assert error.value.code == signals.RESUMABLE


@pytest.mark.slow
def test_a_signal_to_all_processes_at_once_lets_the_trials_save(tmp_path):
  """Like a signal from a supervisor that knows all processes of its job."""
  trial = one_trial(tmp_path, 0.1, '--config.steps=1000000')
  _, *fields = trial.flags
  child = live_runs.start(
    [
      *(sys.executable, '-m', 'selsync_jax', 'compare', *fields),
      *('--methods=bsp', '--seeds=1', f'--out={tmp_path}'),
    ]
  )
  live_runs.wait_for_rows(trial.workdir, 5, child)
  for pid in descendants(child.pid):
    os.kill(pid, signal.SIGTERM)
  child.terminate()
  code, lines = live_runs.outcome(child)
  assert code == 75 and 'train: stopped by a signal after step' in lines[-1]


def descendants(pid):
  """The ids of a process's descendants."""
  for file in pathlib.Path(f'/proc/{pid}/task').glob('*/children'):
    for child in map(int, file.read_text().split()):
      yield child
      yield from descendants(child)


@pytest.mark.slow
def test_a_trial_that_has_done_enough_is_stopped_and_can_resume(tmp_path):
  trial = one_trial(tmp_path, 0.1, '--config.steps=1000000')
  with pool.Processes(1) as processes:
    processes.run(trial, lambda: trial.share_done > 0)
  *_, last = (trial.workdir / 'train.log').read_text().splitlines()
  assert 'stopped by a signal after step' in last and not trial.is_done


@pytest.mark.slow
def test_jobs_run_at_a_time_and_one_that_fails_ends_the_others(tmp_path):
  """The second trial fails once the first logs a step; the third never runs."""
  queue = [
    one_trial(tmp_path / name, 0.1, '--config.steps=1000000') for name in 'abc'
  ]
  long, bad, never = queue
  bad.flags.append('--config.workers=0')

  def run(trial):
    while trial is bad and not long.share_done:
      time.sleep(0.02)
    processes.run(trial)

  with pool.Processes(2) as processes, pytest.raises(pool.TrialFailed) as error:
    processes.run_all(queue, run)
  assert error.value.code == 2
  assert str(error.value) == (
    f'{bad.workdir}: train: config.workers=0: must be in [1, 4096]'
  )
  log = (long.workdir / 'train.log').read_text()
  assert 'train: stopped by a signal after step' in log
  assert 0 < long.share_done < 1 and not never.workdir.exists()
