"""Child processes that end with this process."""

from collections.abc import Mapping, Sequence
import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

_LAUNCHER = 'SELSYNC_LAUNCHER'  # The variable that holds the parent's pid.
_PR_SET_PDEATHSIG = 1  # From linux/prctl.h.
_LIBC = ctypes.CDLL(None)  # Loaded before any fork.


def start(
  command: Sequence[str], env: Mapping[str, str], **options: Any
) -> subprocess.Popen:
  """Starts a command that ends with this process.

  The child calls `end_with_parent` at its start, unless it is the `preexec_fn`,
  and `is_orphaned` after each step of training. The options are those of
  `subprocess.Popen`.
  """
  return subprocess.Popen(
    command,
    env={**env, _LAUNCHER: str(os.getpid())},
    # Ctrl-C in the terminal would reach the process a second time.
    start_new_session=True,
    **options,
  )


def end_with_parent(number: int = signal.SIGTERM) -> None:
  """Asks Linux for a signal when the process that started this one ends."""
  if sys.platform == 'linux':
    _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def is_orphaned() -> bool:
  """Returns whether the process that started this one by `start` has ended.

  A shell may be between the two. Not every system sends a signal.
  """
  launcher = os.environ.get(_LAUNCHER)
  if launcher is None:
    return False
  try:
    os.kill(int(launcher), 0)
  except (ProcessLookupError, PermissionError):  # The pid is reused.
    return True
  return False
