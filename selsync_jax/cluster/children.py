"""Processes that this one starts, and that end with it."""

from collections.abc import Mapping, Sequence
import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

LAUNCHER = 'SELSYNC_LAUNCHER'  # The variable that holds the parent's pid.
_PR_SET_PDEATHSIG = 1  # From linux/prctl.h.
_LIBC = ctypes.CDLL(None)  # Loaded before any fork.


def start(
  command: Sequence[str], env: Mapping[str, str], **options: Any
) -> subprocess.Popen:
  """Starts a command that is asked to end when this process ends.

  Linux sends it SIGTERM then. On other systems training asks after each step,
  by `is_orphaned`. The options are those of `subprocess.Popen`.
  """
  return subprocess.Popen(
    command,
    env={**env, LAUNCHER: str(os.getpid())},
    # Ctrl-C in the terminal would reach the process a second time.
    start_new_session=True,
    preexec_fn=_end_with_parent if sys.platform == 'linux' else None,
    **options,
  )


def _end_with_parent() -> None:
  _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def is_orphaned() -> bool:
  """Returns whether the process that started this one by `start` has ended."""
  launcher = os.environ.get(LAUNCHER)
  if launcher is None:
    return False
  try:
    os.kill(int(launcher), 0)
  except ProcessLookupError:
    return True
  return False
