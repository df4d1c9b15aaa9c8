"""JAX where it cannot start, in separate processes."""

import ctypes
import os
import resource
import sys

import pytest

from selsync_jax.config import ConfigError
from selsync_jax.devices import backend
from tests.support import live_runs

ASKING = """
import sys

from selsync_jax.config import ConfigError
from selsync_jax.devices import backend

try:
  backend.start(*sys.argv[1:])
  print('started')
except ConfigError as error:
  print(error)
"""

FAULTS = """
import resource

from selsync_jax.devices import backend

backend.start('cpu')
for _ in range(20):
  blocks = [b'x' * (4 << 20) for _ in range(40)]
  del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def ask(device, **variables):
  return live_runs.run(
    sys.executable, '-c', ASKING, device, env=os.environ | variables
  )


@pytest.mark.parametrize(
  'variables, line',
  [
    ({'JAX_PLATFORMS': 'cpu'}, 'started'),
    (
      {'JAX_PLATFORMS': 'gpu3'},
      'JAX_PLATFORMS=gpu3: JAX cannot start: Unable to initialize backend ',
    ),
  ],
)
def test_jax_starts_or_says_in_one_line_why_not(variables, line):
  done = ask('auto', **variables)
  assert done.returncode == 0, done.stderr
  (said,) = done.stdout.splitlines()
  assert said.startswith(line)


def test_a_device_that_jax_has_not_started_on_is_refused():
  done = ask('gpu', JAX_PLATFORMS='cpu')
  assert done.stdout.startswith(
    'config.device=gpu: JAX has started on cpu: Unknown backend'
  )
  assert len(done.stdout.splitlines()) == 1


def test_a_fall_back_to_the_cpu_is_reported(tmp_path):
  # An installed plugin that cannot start, like one without its driver.
  (tmp_path / 'no_driver.py').write_text('def initialize(): 1 / 0\n')
  info = tmp_path / 'no_driver-1.dist-info'
  info.mkdir()
  (info / 'METADATA').write_text('Name: no_driver\nVersion: 1\n')
  (info / 'entry_points.txt').write_text(
    '[jax_plugins]\nxla_cuda12 = no_driver\n'
  )
  path = f'{live_runs.ROOT}:{tmp_path}'
  done = ask('auto', JAX_PLATFORMS='', PYTHONPATH=path)
  if 'gpu' in done.stdout:
    pytest.skip('this machine has a GPU')
  assert done.stdout == 'started\n', done.stderr
  line = done.stderr.splitlines()[-1]
  assert line.startswith('JAX runs on the CPU, although it has the plugin xla_')
  assert line.endswith('; --config.device=gpu makes this an error')
  # Whoever asked for a CPU knows.
  assert 'although' not in ask('cpu', PYTHONPATH=path).stderr


@pytest.mark.slow
def test_a_run_without_its_gpu_ends_before_it_has_a_folder(tmp_path):
  folder = tmp_path / 'run'
  done = live_runs.run(
    *live_runs.command('selsync', 1, folder, '--config.device=gpu')
  )
  assert done.returncode == 2
  (line,) = done.stderr.splitlines()
  assert line.startswith('train.py: config.device=gpu: JAX has started on cpu')
  assert not folder.exists()


@pytest.mark.slow
def test_a_run_without_jax_ends_before_it_has_a_folder(tmp_path):
  done = live_runs.run(
    *live_runs.command('selsync', 1, tmp_path / 'run'),
    env=os.environ | {'JAX_PLATFORMS': 'cuda'},
  )
  if done.returncode == 0:
    pytest.skip('this machine has a GPU')
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1].startswith('train.py: JAX_PLATFORMS')
  assert 'Traceback' not in done.stderr
  assert not (tmp_path / 'run').exists()


@pytest.mark.skipif(
  not hasattr(ctypes.CDLL(None), 'mallopt'), reason='is about glibc'
)
def test_freed_memory_is_kept_for_the_next_step_on_a_cpu():
  done = live_runs.run(sys.executable, '-c', FAULTS, env=os.environ)
  fresh = 20 * 40 * (4 << 20) // resource.getpagesize()  # If all were new.
  assert int(done.stdout) < fresh / 4, done.stderr


@pytest.mark.parametrize(
  'workers, processes, inside', [(4, 3, 1), (2, 8, 2), (3, 2, 2), (2, 3, 3)]
)
def test_processes_that_cannot_share_the_workers_are_refused(
  workers, processes, inside
):
  with pytest.raises(ConfigError, match=f'config.workers={workers}: '):
    backend.make_devices(workers, processes, data=1, fsdp=inside)
