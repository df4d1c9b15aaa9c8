"""The provenance of a run: versions, commits, command, host, devices and date.

`run.json` is a list of sessions. A session is one start of the command; a run
that was stopped and resumed has several.
"""

from collections.abc import Mapping, Sequence
import contextlib
import datetime
import functools
from importlib import metadata
import pathlib
import platform
import shlex
import socket
import subprocess
import sys
from typing import Any, NotRequired, TypedDict

from selsync_jax.runs import files

PROVENANCE = 'run.json'
_PACKAGES = ('jax', 'jaxlib', 'flax', 'numpy', 'optax', 'selsync-jax')
_SECRETS = ('cluster_token', 'join')  # Flags.


class _Session(TypedDict):
  began: str
  step: int
  command: str
  folder: str
  host: str
  devices: dict
  versions: dict
  code: dict
  changes: NotRequired[list[str]]


@functools.cache
def versions() -> dict[str, str]:
  """Returns the versions of Python and of packages that affect results."""
  found = {'Python': platform.python_version()}
  for package in _PACKAGES:
    # This package may run from a checkout that is not installed.
    with contextlib.suppress(metadata.PackageNotFoundError):
      found[package] = metadata.version(package)
  return found


def append(
  workdir: pathlib.Path,
  step: int,
  devices: Mapping[str, Any],
  changes: Sequence[str] = (),
) -> None:
  """Adds this session, which starts at a step, to the sessions of a run.

  `changes` are the accepted changes of data or model since the last session.
  """
  session = {
    'began': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
    'step': step,
    'devices': dict(devices),
    **origin(),
    **({'changes': list(changes)} if changes else {}),
  }
  files.write_json(workdir / PROVENANCE, [*sessions(workdir), session])


def origin() -> dict[str, Any]:
  """Returns this process's command, folder, host, versions and code."""
  return {
    'command': shlex.join(without_secrets(sys.orig_argv)),
    'folder': str(pathlib.Path.cwd()),
    'host': socket.gethostname(),
    'versions': versions(),
    'code': _code(),
  }


def sessions(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the sessions of a run, oldest first; reports a damaged file."""
  try:
    return files.read(workdir / PROVENANCE, list[_Session]) or []
  except files.DamagedFile as error:
    print(f'{error}; it is left out', file=sys.stderr)
    return []


def processes(workdir: pathlib.Path) -> list[int]:
  """Returns how many processes each session of a run had, oldest first."""
  return [each['devices'].get('processes', 1) for each in sessions(workdir)]


def without_secrets(arguments: Sequence[str]) -> list[str]:
  """Returns a command line with `...` in place of its secrets."""
  shown = list(arguments)
  for i, argument in enumerate(shown):
    name, equals, _ = argument.partition('=')
    if name.startswith('-') and name.lstrip('-') in _SECRETS:
      hidden = [f'{name}=...'] if equals else [name, '...']
      shown[i : i + len(hidden)] = hidden
  return shown


@functools.cache
def _code() -> dict[str, Any]:
  """Returns the commits of this package and of the working directory.

  They are read once per process, since imported code does not change either.
  """
  folders = [pathlib.Path(__file__).parent, pathlib.Path.cwd()]
  return dict(filter(None, map(repository, folders)))


def repository(folder: pathlib.Path) -> tuple[str, dict[str, Any]] | None:
  """Returns the root of a folder's git repository, and its commit and state.

  It is `None` if the folder is in no repository, or git is not installed.
  """
  try:
    found = _git(folder, 'rev-parse', '--show-toplevel', 'HEAD')
    root, commit = found.split('\n')
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
