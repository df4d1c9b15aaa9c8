"""The ID of a run at a service, which stays the same when the run resumes."""

from collections.abc import Callable
import pathlib

from selsync_jax.runs import files


def remembered(path: pathlib.Path, create: Callable[[], str]) -> str:
  """The ID in a file; if there is none, creates one and writes it there."""
  if content := files.read_bytes(path):
    return content.decode().strip()
  created = create()
  files.write(path, f'{created}\n')
  return created
