"""`selsync launch`: several processes of a command on this machine."""

import pathlib
import signal
import sys
import time
import uuid

import pytest

from tests.support import live_runs

# `selsync launch` that stops the other processes soon after one has failed.
IMPATIENT = (
  sys.executable,
  '-c',
  'import sys; from selsync_jax.commands import launch; '
  'launch.PATIENCE = 0.5; launch.main(sys.argv[1:])',
)


def launch(processes, *command, by=live_runs.LAUNCH):
  return live_runs.run(*by, f'--processes={processes}', '--', *command)


def test_the_launcher_tells_each_process_its_place_and_prefixes_its_lines():
  code = (
    'import os, sys; print(os.environ["JAX_PROCESS_ID"], '
    'os.environ["JAX_NUM_PROCESSES"], '
    'int(os.environ["SELSYNC_LAUNCHER"]) == os.getppid()); '
    'print("oops", file=sys.stderr)'
  )
  done = launch(3, sys.executable, '-c', code)
  assert done.returncode == 0
  printed = (done.stdout, [f'[{i}] {i} 3 True' for i in range(3)])
  warned = (done.stderr, [f'[{i}] oops' for i in range(3)])
  for text, lines in (printed, warned):
    assert sorted(text.splitlines()) == lines


def test_the_launcher_gives_its_processes_one_new_token():
  code = 'import os; print(os.environ["SELSYNC_CLUSTER_TOKEN"])'
  tokens = [
    line.partition(' ')[2]
    for _ in range(2)
    for line in launch(2, sys.executable, '-c', code).stdout.splitlines()
  ]
  one, same, other, again = tokens
  assert one == same != other == again
  assert len(one) == 32


def test_the_launcher_ends_all_when_one_fails_and_returns_its_code():
  code = (
    'import os, sys, time; i = int(os.environ["JAX_PROCESS_ID"]); '
    'time.sleep(0.2 if i == 1 else 60); sys.exit(7)'
  )
  start = time.monotonic()
  done = launch(3, sys.executable, '-c', code, by=IMPATIENT)
  assert done.returncode == 7
  assert time.monotonic() - start < 30


def test_the_launcher_names_the_process_that_was_killed():
  code = (
    'import os, signal, time; i = int(os.environ["JAX_PROCESS_ID"]); '
    'i or os.kill(os.getpid(), signal.SIGKILL); time.sleep(1)'
  )
  done = launch(2, sys.executable, '-c', code)
  assert done.returncode == 128 + signal.SIGKILL
  assert 'launch: process 0 was killed by SIGKILL; the kernel' in done.stderr


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGHUP])
def test_processes_that_do_not_handle_a_signal_end_in_one_line(number):
  code = 'import time; print("there", flush=True); time.sleep(60)'
  own = f'--processes=2 -- {sys.executable} -c'.split()
  child = live_runs.start([*live_runs.LAUNCH, *own, code])
  for _ in range(2):
    assert child.stdout.readline().endswith('there\n')
  child.send_signal(number)
  assert live_runs.outcome(child) == (
    130,
    [f'launch: stopped by {number.name}'],
  )


@pytest.fixture
def little_memory():
  """A memory cgroup of 64 MiB, of version 1 or 2, without swap."""
  root = pathlib.Path('/sys/fs/cgroup')
  files = {'memory.max': '64M', 'memory.swap.max': '0'}
  if (root / 'memory').is_dir():
    root /= 'memory'
    files = {'memory.limit_in_bytes': '64M', 'memory.swappiness': '0'}
  group = root / f'selsync-{uuid.uuid4().hex}'
  try:
    group.mkdir()
  except OSError as error:
    pytest.skip(f'no cgroup can be made: {error}')
  try:
    for name, value in files.items():
      if not (file := group / name).exists():
        pytest.skip(f'{file} is missing')
      file.write_text(value)
    yield group
  finally:
    group.rmdir()


@pytest.mark.slow  # It changes the machine: it makes a cgroup.
def test_the_launcher_says_so_when_memory_runs_out(little_memory):
  code = """
import os, pathlib, sys
if os.environ['JAX_PROCESS_ID'] == '1':
  pathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))
  b'x' * 2**28
"""
  done = launch(2, sys.executable, '-c', code, little_memory)
  assert done.returncode == 128 + signal.SIGKILL
  assert done.stderr == (
    'launch: process 1 was killed by SIGKILL; the kernel does so when memory '
    'runs out\n'
  )


def test_launch_gives_islands_names_and_the_invitation_of_one_meeting_point():
  code = 'import os; e = os.environ; print(e["SELSYNC_INVITATION"], *e)'
  left = [*live_runs.LAUNCH, '--islands=2', '--', sys.executable, '-c', code]
  done = live_runs.run(*left)
  lines = sorted(done.stdout.splitlines())
  invitation = lines[0].split()[1]
  ask = f'launch: SELSYNC_INVITATION={invitation} selsync status'
  assert ask in done.stderr.splitlines()
  assert [line.split()[0] for line in lines] == ['[island0]', '[island1]']
  assert len({line.split()[1] for line in lines}) == 1
  assert not any('JAX_COORDINATOR_ADDRESS' in line for line in lines)


def test_launch_ends_all_islands_when_one_fails_before_they_have_met():
  """Even if fewer islands may continue later."""
  code = (
    'import os, sys, time; '
    'time.sleep(60 * (os.environ["SELSYNC_ISLAND"] != "island1")); sys.exit(7)'
  )
  flags = '--islands=3', '--minimum=1', '--', sys.executable, '-c', code
  assert live_runs.run(*IMPATIENT, *flags, timeout=50).returncode == 7


@pytest.mark.slow
def test_a_child_that_a_process_leaves_behind_does_not_hold_launch():
  left = [*live_runs.LAUNCH, '--processes=1', '--', 'sh', '-c']
  done = live_runs.run(*left, 'sleep 100 & exit 3', timeout=60)
  assert done.returncode == 3


@pytest.mark.slow
def test_processes_end_with_a_launch_that_is_killed():
  code = 'import os, time; print(os.getpid(), flush=True); time.sleep(100)'
  command = [*live_runs.LAUNCH, '--processes=1', '--', sys.executable, '-c']
  with live_runs.start([*command, code]) as child:
    pid = int(child.stdout.readline().split()[1])
    child.kill()
  deadline = time.monotonic() + 30
  while pathlib.Path(f'/proc/{pid}').exists():
    assert time.monotonic() < deadline
    time.sleep(0.05)
