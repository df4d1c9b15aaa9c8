"""The benchmarks' emulated cluster, as a user starts it."""

import functools
import sys

from tests.support import live_runs

COMMAND = (sys.executable, '-m', 'benchmarks.network.cluster')


@functools.cache
def missing() -> str | None:
  """Returns what this machine lacks to emulate a cluster, or `None`."""
  done = live_runs.run(*COMMAND, '--hosts=1', '--', 'true')
  return done.stderr.strip() if done.returncode else None
