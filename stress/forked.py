"""Runs of `train.py` for `fuzz_test`, as forks that share their imports."""

from collections.abc import Sequence
import json
import os
import pathlib
import signal
import subprocess
import sys

from stress import fuzz
from tests.support.live_runs import ROOT

# The server has imported everything that a run needs, and has started no
# backend. The kernel ends a run that hangs.
_SERVER = """
import json, os, resource, runpy, signal, sys, warnings
import flax.linen, optax
import selsync_jax.training.train
warnings.filterwarnings('ignore', '.*fork')  # No thread of ours holds a lock.
for line in sys.stdin:
  about = json.loads(line)
  if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    continue
  signal.setitimer(signal.ITIMER_REAL, about['limit'])
  os.environ.update(about['env'])
  for fd, path in (0, os.devnull), (1, os.devnull), (2, about['errors']):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), fd)
  resource.setrlimit(resource.RLIMIT_AS, (about['memory'],) * 2)
  sys.argv = ['train.py', '--noreport', *about['flags']]
  runpy.run_path('train.py', run_name='__main__')
  sys.exit()
"""


class Forks:
  """Runs each case in a process of its own."""

  def __init__(self):
    self._server = subprocess.Popen(
      [sys.executable, '-c', _SERVER],
      cwd=ROOT,
      env=os.environ | fuzz.CACHE,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def run(
    self, flags: Sequence[str], folder: pathlib.Path, limit: float, **env: str
  ) -> tuple[int | None, str]:
    """The result of `fuzz.run`; `env` is for a case's code, not for JAX."""
    errors = folder / 'errors'
    about = {'flags': flags, 'errors': str(errors), 'limit': limit, 'env': env}
    line = json.dumps(about | {'memory': fuzz.MEMORY})
    print(line, file=self._server.stdin, flush=True)
    code = int(self._server.stdout.readline())
    return None if code == -signal.SIGALRM else code, errors.read_text()

  def close(self) -> None:
    """Ends the forking process when no case runs."""
    self._server.communicate()
