"""Several processes train the same as one, however workers are spread.

world_test.py covers the messages between processes; here real processes
exchange them.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from selsync_jax.configs import digits
from selsync_jax.runs import records
from tests.support import live_runs, private
from tests.support.marks import slow

AGAIN = 'restart all processes to resume from the last checkpoint'

# The processes find the tests' data through the environment.
pytestmark = pytest.mark.usefixtures('data_dir')


def assert_same_training(one, other):
  """The first 20 rows of two runs, and their parameters at step 15."""
  rows = [live_runs.rows(workdir)[:20] for workdir in (one, other)]
  synced = [[row['synced'] for row in half] for half in rows]
  assert synced[0] == synced[1]
  assert 1 < sum(synced[0]) < 20
  for (name, left), (_, right) in zip(
    live_runs.arrays(one, 15), live_runs.arrays(other, 15), strict=True
  ):
    if 'params' in name:
      np.testing.assert_allclose(left, right, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_workers_do_the_same_on_two_processes_as_on_one(left_alone):
  assert_same_training(left_alone('selsync', 1), left_alone('selsync', 2))


@pytest.mark.slow
def test_four_processes_do_and_reach_what_one_does(
  left_alone, default_run, tmp_path
):
  """The default run; both schedules warm up alike."""
  run = live_runs.command('selsync', 4, tmp_path, '--config.checkpoint.keep=99')
  live_runs.finish([*run, '--config.steps=300'])
  assert_same_training(left_alone('selsync', 1), tmp_path)
  scores = [
    json.loads((workdir / 'summary.json').read_text())['test_accuracy']
    for workdir in (default_run.workdir, tmp_path)
  ]
  assert min(scores) >= 0.97
  assert abs(scores[0] - scores[1]) < 0.01


def start_in_slurm(command):
  """Starts a command as the two tasks that srun would start on one node."""
  slurm = {
    'SLURM_JOB_ID': str(os.getpid()),
    'SLURM_STEP_NODELIST': 'localhost',
    'SLURM_STEP_NUM_NODES': '1',
    'SLURM_NTASKS': '2',
  }
  return [
    subprocess.Popen(
      command,
      cwd=live_runs.ROOT,
      env=os.environ | slurm | {'SLURM_PROCID': i, 'SLURM_LOCALID': i},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for i in '01'
  ]


JOINING = """
import sys
import selsync_jax as ss

with ss.join() as cluster:
  print('joined', cluster.process, cluster.processes)
assert 'tensorflow' not in sys.modules
"""


def test_slurm_is_found_without_a_flag():
  for i, child in enumerate(start_in_slurm([sys.executable, '-c', JOINING])):
    output, _ = child.communicate(timeout=300)
    assert child.returncode == 0, output
    assert f'joined {i} 2' in output.splitlines()


@pytest.mark.slow
def test_train_finds_slurm_without_a_flag(tmp_path):
  """Two processes refuse three workers, which one would train."""
  command = live_runs.command('selsync', 1, tmp_path, '--config.workers=3')
  ends = [live_runs.outcome(child) for child in start_in_slurm(command)]
  assert any(
    lines[-1].startswith('train.py: config.workers=3: 2 processes cannot even')
    for _, lines in ends
  )


JOINS = """
import selsync_jax as ss
with ss.join() as cluster:
  from selsync_jax.cluster import processes
  print(processes.json_from_first(cluster.process + 7))
"""


@pytest.mark.slow
@pytest.mark.parametrize('host', ['127.0.0.1', '[::1]'])
def test_processes_meet_whatever_proxy_the_environment_has(host, monkeypatch):
  if host == '[::1]' and not socket.has_dualstack_ipv6():
    pytest.skip('needs IPv6')
  monkeypatch.delenv('grpc_proxy')  # The first that gRPC looks for.
  for name in ('http_proxy', 'https_proxy', 'all_proxy'):
    monkeypatch.setenv(name, 'http://127.0.0.1:9')
  monkeypatch.setenv('JAX_NUM_PROCESSES', '2')
  address = f'{host}:{live_runs.free_port()}'
  monkeypatch.setenv('JAX_COORDINATOR_ADDRESS', address)
  children = []
  for index in '01':
    monkeypatch.setenv('JAX_PROCESS_ID', index)
    children.append(live_runs.start([sys.executable, '-c', JOINS]))
  for code, lines in map(live_runs.outcome, children):
    assert (code, lines[-1]) == (0, '7'), lines


@pytest.mark.slow
def test_a_host_name_that_does_not_resolve_is_told_in_one_line(tmp_path):
  prefix = private.after('hostname no-such-host')
  done = live_runs.run(*prefix, *live_runs.command('selsync', 2, tmp_path))
  assert done.returncode == 2
  assert (
    "train.py: host name 'no-such-host': does not resolve; processes find each "
    'other by host name, so add this one to /etc/hosts'
  ) in done.stderr


def member(workdir, process, processes, port, *flags, by=()):
  """Starts one process of a run, perhaps by another command."""
  return live_runs.start(
    [
      *by,
      *live_runs.command('selsync', 1, workdir),
      f'--coordinator=localhost:{port}',
      f'--num_processes={processes}',
      f'--process_id={process}',
      *flags,
    ]
  )


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1])
def test_a_frozen_process_is_waited_for_and_then_given_up(victim, tmp_path):
  port = live_runs.free_port()
  flags = ('--config.steps=100000', '--cluster_timeout=6')
  children = [member(tmp_path, i, 2, port, *flags) for i in range(2)]
  frozen, survivor = children[victim], children[1 - victim]
  live_runs.wait_for_rows(tmp_path, 10, *children)
  os.kill(frozen.pid, signal.SIGSTOP)
  time.sleep(2)
  os.kill(frozen.pid, signal.SIGCONT)
  more = len(live_runs.rows(tmp_path)) + 10
  live_runs.wait_for_rows(tmp_path, more, *children)
  os.kill(frozen.pid, signal.SIGSTOP)
  code, lines = live_runs.outcome(survivor)
  assert code == 1
  assert lines[-1] == (
    f'process {1 - victim}: process {victim} does not answer; {AGAIN}'
  )
  os.kill(frozen.pid, signal.SIGCONT)
  code, lines = live_runs.outcome(frozen)
  assert code == 1
  assert lines[-1] == f'process {victim}: process {1 - victim} is gone; {AGAIN}'


DYING = """
import os, signal, socket, sys, time
import jax
from jax.experimental import multihost_utils
import numpy as np
import selsync_jax as ss

def connections():
  links = {}  # By both ports.
  for fd in os.listdir('/proc/self/fd'):
    try:
      link = socket.socket(fileno=os.dup(int(fd)))
      if link.family != socket.AF_UNIX:  # Those are within this process.
        links[link.getsockname()[1], link.getpeername()[1]] = link
    except OSError:  # A file, or a socket that listens.
      pass
  return {ends: link for ends, link in links.items() if ends[::-1] not in links}

process, port, first = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with ss.join(f'localhost:{port}', 2, process, timeout=30):
  before = connections()
  while True:
    multihost_utils.process_allgather(np.ones(10))
    if process == 0:
      for ends, link in connections().items():
        of = 'coordination' if ends in before else 'collectives'
        if of == first and ends[0] != port:  # Not the world's.
          link.shutdown(socket.SHUT_RDWR)
      time.sleep(1)
      os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize('first', ['collectives', slow('coordination')])
def test_what_breaks_first_does_not_hide_who_is_gone(first):
  """The processes call `join` and need no TensorFlow."""
  port = str(live_runs.free_port())
  children = [
    live_runs.start([sys.executable, '-c', DYING, str(i), port, first])
    for i in range(2)
  ]
  live_runs.outcome(children[0])
  code, lines = live_runs.outcome(children[1])
  assert code == 1
  assert lines[-1] == (f'process 1: process 0 is gone; {AGAIN}')


@pytest.mark.slow
def test_a_run_whose_processes_have_different_configs_ends_in_one_line(
  tmp_path,
):
  port, wait = live_runs.free_port(), '--cluster_timeout=10'
  flags = [(wait,), (wait, '--config.seed=1')]
  children = [member(tmp_path, i, 2, port, *flags[i]) for i in range(2)]
  differs = 'process 1 has config.seed 1, process 0 has 0'
  assert live_runs.outcome(children[1]) == (1, [f'train.py: {differs}'])
  assert live_runs.outcome(children[0]) == (
    1,
    [
      'train.py: of 2 processes, process 1 did not connect within 10 s: '
      f'{differs}'
    ],
  )


@pytest.mark.slow
def test_processes_whose_workdirs_differ_end_with_the_reason(tmp_path):
  port = live_runs.free_port()
  children = [
    member(tmp_path / f'host{i}', i, 2, port, '--cluster_timeout=10')
    for i in range(2)
  ]
  (code, lines), (other_code, other_lines) = map(live_runs.outcome, children)
  assert (code, other_code) == (1, 2)
  assert lines[-1] == f'process 0: process 1 has failed; {AGAIN}'
  assert other_lines[-1] == (
    f'train.py: --workdir={tmp_path}/host1: process 1 does not see '
    'the files of process 0 there; use a folder that all processes share'
  )


@pytest.mark.slow
def test_a_process_that_fails_alone_ends_the_others_too(tmp_path):
  # Process 0 alone looks at the workdir; the other waits for it there.
  config = digits.get_config()
  config.seed = 1
  records.write_config(tmp_path, config.to_dict())
  port = live_runs.free_port()
  children = [member(tmp_path, i, 2, port) for i in range(2)]
  (code, lines), (other_code, other_lines) = map(live_runs.outcome, children)
  assert code == 2
  refusal = f'train.py: --workdir={tmp_path} holds a run with another config: '
  assert lines[-1].startswith(refusal)
  assert other_code == 1
  assert other_lines[-1] == (f'process 1: process 0 has failed; {AGAIN}')


@pytest.mark.slow
def test_a_process_that_cannot_save_ends_the_others_soon(tmp_path):
  port, limited = live_runs.free_port(), 'ulimit -f 4; exec "$@"'
  by = [(), ('bash', '-c', limited, '')]
  children = [member(tmp_path, i, 2, port, by=by[i]) for i in range(2)]
  assert children[0].wait(120) == 1  # It would wait for 20 minutes.
  (_, lines), (code, other_lines) = map(live_runs.outcome, children)
  assert lines[-1] == f'process 0: process 1 has failed; {AGAIN}'
  assert code == 1
  assert other_lines[-1] == (
    'train.py: checkpoint: File too large; last good checkpoint: none'
  )
  assert not live_runs.rows(tmp_path)
