"""`ss.join` in a custom training loop, with real processes."""

import json
import os
import re
import signal
import sys

import pytest

import selsync_jax as ss
from selsync_jax.config import ConfigError
from tests.support import live_runs
from tests.support.pages import blocks

LOOP = """
import os, signal, sys, time
from jax.experimental import multihost_utils
import numpy as np
import selsync_jax as ss

number = int(sys.argv[1])
with ss.join(agreed={'rate': 0.1}) as cluster:
  assert 'tensorflow' not in sys.modules
  for step in range(10**6):
    (total,) = multihost_utils.process_allgather(np.ones(1)).sum(0)
    if step == 3:
      print(f'is {cluster.process} of {total:g}', flush=True)
    if step == 4 and cluster.process == 1:  # Both have printed by now.
      os.kill(os.getpid(), number)
    if cluster.stops_after(step):
      print('stopped after', step)
      sys.exit(75)
"""


@pytest.fixture
def loop(tmp_path):
  """The command of the loop; its argument is a signal to send itself."""
  path = tmp_path / 'loop.py'
  path.write_text(LOOP)
  return sys.executable, path


def launch(loop, number):
  """Launches two processes; returns the result, and their last lines."""
  done = live_runs.run(
    *live_runs.LAUNCH, '--processes=2', '--', *loop, str(int(number))
  )
  # Gloo prints to the same pipe, and may leave its line open for the next.
  assert 'is 0 of 2' in done.stdout
  assert 'is 1 of 2' in done.stdout
  return done, [line for line in done.stdout.splitlines() if 'stopped' in line]


def test_a_signal_to_one_stops_all_after_the_same_step(loop):
  done, stopped = launch(loop, signal.SIGTERM)
  assert done.returncode == 75, done.stderr
  one, other = (line.split('] stopped after ')[1] for line in stopped)
  assert 3 <= int(one) == int(other) < 10**5


def test_a_loop_whose_peer_is_killed_ends_in_one_line(loop):
  done, stopped = launch(loop, signal.SIGKILL)
  assert done.returncode in (1, 128 + signal.SIGKILL)  # Depends on the order.
  assert not stopped
  assert [line for line in done.stderr.splitlines() if line[:3] == '[0]'] == [
    '[0] process 0: process 1 is gone; restart all processes to resume from '
    'the last checkpoint'
  ]


# Each case is a fork, so that Python and JAX are imported once.
JOIN = """
import json, os, sys, tempfile, warnings
import jax
import selsync_jax as ss
import selsync_jax.cluster.processes

warnings.filterwarnings('ignore', '.*fork')  # No thread of ours holds a lock.
ends = {}
for case, place in json.load(sys.stdin).items():
  with tempfile.TemporaryFile('w+') as errors:
    if child := os.fork():
      code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
      errors.seek(0)
      ends[case] = code, errors.read()
      continue
    os.environ.update(place)
    os.dup2(errors.fileno(), 2)
    if case == 'late':
      jax.devices()
    with ss.join(timeout=1):
      sys.exit()
print(json.dumps(ends))
"""
PLACE = {
  'JAX_COORDINATOR_ADDRESS': 'localhost:PORT',
  'JAX_NUM_PROCESSES': '2',
  'JAX_PROCESS_ID': '0',
}
OPEN_MPI = {'OMPI_MCA_orte_hnp_uri': '1531576320.0;tcp://10.96.0.1:34911'}
SALLOC = {
  'SLURM_JOB_ID': '1',
  'SLURM_STEP_NODELIST': 'localhost',
  'SLURM_NTASKS': '4',
  'SLURM_PROCID': '0',
  'SLURM_LOCALID': '0',
  'SLURM_STEP_NUM_TASKS': '1',
}
WAY_OUT = (
  'set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, or set '
  'JAX_NUM_PROCESSES=1 to run alone'
)


# Environment variables, the exit code, and the last line on stderr.
JOINS = {
  'spec': (
    {'JAX_NUM_PROCESSES': '2'},
    2,
    'coordinator, process_id: missing; coordinator, num_processes, process_id '
    'go together',
  ),
  'missing': (PLACE, 1, 'of 2 processes, process 1 did not connect within 1 s'),
  'late': (
    {},
    2,
    'join: must come before the first use of JAX, as by jax.devices()',
  ),
  'salloc': (
    SALLOC,
    2,
    'SLURM_NTASKS=4: this is a step of 1; start all tasks with srun, or set '
    'JAX_NUM_PROCESSES=1 to run alone',
  ),
  'incomplete': (
    OPEN_MPI,
    2,
    'the scheduler that JAX detects: OMPI_COMM_WORLD_SIZE is not set; '
    f'{WAY_OUT}',
  ),
  'unreadable': (
    {'OMPI_MCA_orte_hnp_uri': '4096.0;usock'},
    1,
    'the scheduler that JAX detects: RuntimeError: Could not parse coordinator '
    f'IP address from Open MPI environment.; {WAY_OUT}',
  ),
  'alone': (SALLOC | {'JAX_NUM_PROCESSES': '1'}, 0, ''),
  'pod': ({'KUBERNETES_SERVICE_HOST': '10.0.0.1'}, 0, ''),
}


@pytest.fixture(scope='module')
def joined(tmp_path_factory):
  """The exit code of each case, and what it wrote on stderr."""
  path = tmp_path_factory.mktemp('join') / 'join.py'
  path.write_text(JOIN)
  places = json.dumps({case: place for case, (place, *_) in JOINS.items()})
  given = places.replace('PORT', str(live_runs.free_port()))
  done = live_runs.run(sys.executable, path, input=given)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.mark.parametrize('case', JOINS)
def test_a_process_joins_or_ends_in_one_line(case, joined):
  _, code, line = JOINS[case]
  assert joined[case] == [code, f'join.py: {line}\n' if line else '']


def test_a_timeout_that_a_healthy_process_may_miss_is_refused(monkeypatch):
  monkeypatch.setattr(sys, 'excepthook', sys.excepthook)
  with pytest.raises(ConfigError) as error:
    ss.join(timeout=0.5)
  assert (
    str(error.value) == 'timeout=0.5: must be a finite number of at least 1'
  )


RECIPE = live_runs.ROOT / 'docs' / 'recipes' / 'own_loop.py'
TWO_DEVICES = os.environ | {'JAX_NUM_CPU_DEVICES': '2'}


def test_the_page_shows_what_the_recipe_does():
  (shown,) = (
    text
    for _, text in blocks('docs/own-loop.md', 'text')
    if 'ss.join()' in text
  )
  assert shown in RECIPE.read_text()


@pytest.mark.slow
def test_two_processes_stop_and_one_goes_on_as_if_nothing_had_been(tmp_path):
  parted, whole = tmp_path / 'parted', tmp_path / 'whole'
  loop = sys.executable, str(RECIPE)
  two = [*live_runs.LAUNCH, '--processes=2', '--', *loop, parted, str(10**6)]
  child = live_runs.start([*map(str, two)])
  for line in child.stdout:
    if 'step 100:' in line:
      break
  child.send_signal(signal.SIGTERM)
  code, lines = live_runs.outcome(child)
  assert code == 75, lines
  stopped = max(int(path.name) for path in parted.iterdir())
  assert stopped >= 100
  steps = str(stopped - stopped % 100 + 200)
  resumed, straight = (
    live_runs.run(*loop, folder, steps, env=TWO_DEVICES).stdout.splitlines()
    for folder in (parted, whole)
  )
  assert resumed == straight[-len(resumed) :]
  assert re.match(rf'step {steps}: loss 0\.\d+, synchronized: ', resumed[-1])
