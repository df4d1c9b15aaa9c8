"""Where a run comes from: versions, commits, command, host, devices and date.

`run.json` has a list of sessions. A session is one start of the command that
took steps; a run that was stopped and resumed has several.
"""

from collections.abc import Mapping
import contextlib
import datetime
import functools
from importlib import metadata
import json
import pathlib
import platform
import shlex
import socket
import subprocess
import sys
from typing import Any, TypedDict

from selsync_jax.runs import files

PROVENANCE = 'run.json'
_PACKAGES = ('jax', 'jaxlib', 'flax', 'numpy', 'optax', 'selsync-jax')
_SECRET = 'cluster_token'  # A flag.


class _Session(TypedDict):
  began: str
  step: int
  command: str
  folder: str
  host: str
  devices: dict
  versions: dict
  code: dict


def versions() -> dict[str, str]:
  """The versions of what computes, which all processes must have."""
  found = {'Python': platform.python_version()}
  for package in _PACKAGES:
    # Ours may be a checkout that is not installed.
    with contextlib.suppress(metadata.PackageNotFoundError):
      found[package] = metadata.version(package)
  return found


def append(
  workdir: pathlib.Path, step: int, devices: Mapping[str, Any]
) -> None:
  """Adds this session to those of a run.

  Args:
    workdir: of the run.
    step: at which the session starts.
    devices: that it uses, as `layout.describe` says.
  """
  session = {
    'began': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
    'step': step,
    'command': _command(),
    'folder': str(pathlib.Path.cwd()),
    'host': socket.gethostname(),
    'devices': dict(devices),
    'versions': versions(),
    'code': _code(),
  }
  every = [*sessions(workdir), session]
  files.write(workdir / PROVENANCE, json.dumps(every, indent=2) + '\n')


def sessions(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The sessions of a run, the first one first; a damaged file is reported."""
  try:
    return files.read(workdir / PROVENANCE, list[_Session]) or []
  except files.DamagedFile as error:
    print(f'{error}; it is left out', file=sys.stderr)
    return []


def _command() -> str:
  """The command line of this process, without its secret."""
  arguments = list(sys.orig_argv)
  for i, argument in enumerate(arguments):
    name, equals, _ = argument.partition('=')
    if name.startswith('-') and name.lstrip('-') == _SECRET:
      hidden = [f'{name}=...'] if equals else [name, '...']
      arguments[i : i + len(hidden)] = hidden
  return shlex.join(arguments)


@functools.cache
def _code() -> dict[str, Any]:
  """The commits of this package and of the working directory, by repository.

  As they are when the process first asks: what is imported stays as it was.
  """
  folders = [pathlib.Path(__file__).parent, pathlib.Path.cwd()]
  return dict(filter(None, map(repository, folders)))


def repository(folder: pathlib.Path) -> tuple[str, dict[str, Any]] | None:
  """The root of a folder's repository, its commit, and whether it was changed.

  `None` if the folder is in none, or there is no git.
  """
  try:
    root, commit = _git(folder, 'rev-parse', '--show-toplevel', 'HEAD').split(
      '\n'
    )
    changes = _git(folder, 'status', '--porcelain', '--untracked-files=no')
  except (OSError, subprocess.SubprocessError, ValueError):
    return None
  return root, {'commit': commit, 'modified': bool(changes)}


def _git(folder: pathlib.Path, *arguments: str) -> str:
  return subprocess.run(
    ['git', '--no-optional-locks', *arguments],
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=10,
    check=True,
  ).stdout.strip()
