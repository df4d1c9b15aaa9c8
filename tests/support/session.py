"""What all tests of a session share, whichever xdist worker runs them."""

from collections.abc import Callable
import fcntl
import os
import pathlib
import shutil

import beartype

ROOT = pathlib.Path(__file__).parents[2]
SESSION = pathlib.Path(os.environ['SELSYNC_TESTS'])  # From conftest.py.

# An int may stand for a float, as for any type checker.
typecheck = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))


def make_once(name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
  """A folder of the session that the first xdist worker to ask for it makes.

  Args:
    name: of the folder.
    make: fills the folder; the other workers wait meanwhile.

  Returns:
    The folder. Whoever changes anything in it takes a copy.
  """
  folder = SESSION / name
  with folder.with_suffix('.lock').open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = folder.with_suffix('.done')
    if not done.exists():
      shutil.rmtree(folder, ignore_errors=True)  # Of an attempt that failed.
      folder.mkdir(parents=True)
      make(folder)
      done.touch()
  return folder
