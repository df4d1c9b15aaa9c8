"""Makes modules beside a config file importable from any folder.

As beside a script, a neighbor precedes a module of the same name in the working
directory. Libraries precede neighbors, so a config file may have the name of a
library. Loading a config file again reloads its neighbors.
"""

from collections.abc import Generator, Sequence
import contextlib
import importlib
from importlib import abc, machinery
import pathlib
import sys
from typing import Any

from selsync_jax import user_errors

_folders: list[str] = []  # Folders of config files, the latest first.
_imported: set[str] = set()  # Neighbors that config files have imported.


class _Finder(abc.MetaPathFinder):
  """Finds neighbors of config files."""

  def find_spec(
    self, name: str, path: Sequence[str] | None = None, target: Any = None
  ) -> machinery.ModuleSpec | None:
    """See `importlib`."""
    del target
    if path is not None or name in sys.stdlib_module_names:
      return None
    usual = machinery.PathFinder.find_spec(name)
    if usual and usual.has_location and not user_errors.is_own(usual.origin):
      return None
    found = machinery.PathFinder.find_spec(name, _folders)
    return found if found and found.loader else None  # Not a namespace.


@contextlib.contextmanager
def importable(file: str) -> Generator[None]:
  """Lets the neighbors of a file be imported from now on."""
  folder = str(pathlib.Path(file).resolve().parent)
  if not _folders:
    sys.meta_path.insert(0, _Finder())
  _folders[:] = [folder, *(each for each in _folders if each != folder)]
  if folder not in sys.path:
    sys.path.append(folder)  # Processes that unpickle functions search it.
  importlib.invalidate_caches()
  for name in _imported:
    sys.modules.pop(name, None)
  before = {*sys.modules}
  try:
    yield
  finally:
    _imported.update(
      name
      for name in sys.modules.keys() - before
      if _lies_in(folder, getattr(sys.modules[name], '__file__', None))
    )


def _lies_in(folder: str, file: str | None) -> bool:
  """Whether a file is in a folder and not of a library installed there."""
  return (file or '').startswith(f'{folder}/') and user_errors.is_own(file)
