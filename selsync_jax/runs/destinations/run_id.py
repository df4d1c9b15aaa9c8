"""The ID of a run at an external service."""

from collections.abc import Callable
import pathlib

from selsync_jax.runs import files


def remembered(path: pathlib.Path, create: Callable[[], str]) -> str:
  """Returns the ID in a file, and creates it if there is no such file."""
  if content := files.read_bytes(path):
    return content.decode().strip()
  created = create()
  files.write(path, f'{created}\n')
  return created
