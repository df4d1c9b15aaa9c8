"""Full and read-only disks."""

from collections.abc import Iterator
import contextlib
import pathlib
import subprocess

import pytest

from tests.support import live_runs


class SmallDisk:
  """Mounts a disk in a folder: `disk(size)` returns the folder."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder

  def __call__(self, size: str) -> pathlib.Path:
    options = ('mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs')
    mounted = live_runs.run(*options, str(self._folder))
    if mounted.returncode:
      pytest.skip(f'no small disk could be mounted: {mounted.stderr.strip()}')
    return self._folder

  def remount(self, option: str) -> None:
    """Changes the disk, to `ro` or to another size."""
    command = ['mount', '-o', f'remount,{option}', str(self._folder)]
    subprocess.run(command, check=True)


@contextlib.contextmanager
def small_disk(folder: pathlib.Path) -> Iterator[SmallDisk]:
  """Yields a disk, and unmounts it at the end."""
  yield SmallDisk(folder)
  subprocess.run(['umount', '-l', str(folder)], check=False)
