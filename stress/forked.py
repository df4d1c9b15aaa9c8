"""Runs of `train.py` that share their imports, as forks of one process."""

from collections.abc import Sequence
import json
import os
import pathlib
import subprocess
import sys
import threading

from stress import fuzz
from tests.support.live_runs import ROOT

# It has imported all that a run needs, and has started no backend.
_SERVER = """
import json, os, resource, runpy, sys
import flax.linen, optax
import selsync_jax.training.train
for line in sys.stdin:
  about = json.loads(line)
  if child := os.fork():
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    continue
  os.environ.update(about['env'])
  for fd, path in (0, os.devnull), (1, os.devnull), (2, about['errors']):
    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), fd)
  resource.setrlimit(resource.RLIMIT_AS, (about['memory'],) * 2)
  sys.argv = ['train.py', '--noreport', *about['flags']]
  runpy.run_path('train.py', run_name='__main__')
  sys.exit()
"""


class Forks:
  """Runs each case in a process of its own, as `fuzz.run` does."""

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
    """The exit code of a run, `None` if it hangs, and its errors."""
    errors = folder / 'errors'
    about = {'flags': flags, 'errors': str(errors), 'env': env}
    line = json.dumps(about | {'memory': fuzz.MEMORY})
    print(line, file=self._server.stdin, flush=True)
    child = int(self._server.stdout.readline())
    timer = threading.Timer(limit, os.kill, (child, 9))
    timer.start()
    code = int(self._server.stdout.readline())
    hangs = not timer.is_alive()
    timer.cancel()
    return None if hangs else code, errors.read_text()

  def close(self) -> None:
    """Ends the process that forks."""
    self._server.communicate(timeout=60)
