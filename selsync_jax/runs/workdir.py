"""The claim on a run's folder, by one process and one config at a time."""

from collections.abc import Generator, Mapping
import contextlib
import fcntl
import os
import pathlib
import secrets
import socket
import sys
import time
from typing import Any, BinaryIO

import jax
import numpy as np

from selsync_jax.cluster import processes
from selsync_jax.config import BusyError, ConfigError
from selsync_jax.fields import completed, may_change
from selsync_jax.runs import files, records

_LOCK = '.lock'
_COMPARE_LOCK = '.compare.lock'
_MARK = 32  # Random bytes in the lock file, which identify a claim.


@contextlib.contextmanager
def opened(
  workdir: pathlib.Path,
  config: Mapping[str, Any],
  restart: bool,
  saved: Mapping[str, Any] | None = None,
  patience: float = 60.0,
) -> Generator[None]:
  """Claims a folder for a run with this config until the context ends.

  The first process claims it, and writes `config.json` unless a finished run is
  there. With `restart`, an existing run is moved aside, to `WORKDIR.1` for
  example. `saved` is the config in the newest checkpoint, in place of a lost
  file. The other processes must see the claim within `patience` seconds: a
  network file system may show a new file late, NFS by default within a minute.
  """
  with contextlib.ExitStack() as held:
    if processes.is_first():
      try:
        folder = workdir.resolve()  # A link stays; its target is moved.
        if restart and folder.exists():
          _refuse_to_move(workdir)
          with _claim(workdir):  # Protects a run that is being written.
            aside = files.move_aside(folder, folder)
          print(f'moved the run in {folder} to {aside}')
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(_claim(workdir))
      except OSError as error:
        raise ConfigError(
          f'--workdir={workdir}: cannot be written: {error.strerror}'
        ) from error
      if _compare(workdir, config, saved):
        records.write_config(workdir, config)
    _check_shared(workdir, patience)
    yield


@contextlib.contextmanager
def claimed(folder: pathlib.Path, flag: str) -> Generator[None]:
  """Claims a folder of several runs; `flag` is the folder's flag."""
  folder.mkdir(parents=True, exist_ok=True)
  with _lock(folder / _COMPARE_LOCK, f'{flag}={folder}', 'its runs'):
    yield


def wait(folder: pathlib.Path, patience: float = 60.0) -> None:
  """Waits until no process writes a run in a folder, but not forever.

  A process whose parent was killed may still be saving there.
  """
  deadline = time.monotonic() + patience
  while _is_held(folder / _LOCK) and time.monotonic() < deadline:
    time.sleep(0.1)


# `filelock` would call the same `flock`, on network file systems too, but has
# no shared lock, which `_is_held` needs for a run that it may not write.
def _take(file: BinaryIO, operation: int = fcntl.LOCK_EX) -> bool:
  """Locks a file until it is closed; returns whether that succeeded."""
  for pause in (0.05, 0.05, 0.0):  # The holder may only look: see `_is_held`.
    try:
      fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
      time.sleep(pause)
    else:
      return True
  return False


def _claim(workdir: pathlib.Path) -> BinaryIO:
  """Locks a folder, and no folder around it, until the file is closed."""
  flag = f'--workdir={workdir}'
  for folder in workdir.resolve().parents:
    if _is_held(folder / _LOCK):
      raise BusyError(
        f'{flag}: another process is writing a run in {folder}'
        f'{_holder(folder / _LOCK)}'
      )
  return _lock(workdir / _LOCK, flag, 'a run')


def _lock(path: pathlib.Path, flag: str, what: str) -> BinaryIO:
  """Locks a file, and writes a random mark and the process's name into it."""
  lock = path.open('ab')
  is_there = _take(lock) and path.exists()
  # Another process may have moved the folder before the lock was taken.
  if not is_there or not os.path.samestat(os.fstat(lock.fileno()), path.stat()):
    lock.close()
    raise BusyError(
      f'{flag}: another process is writing {what} there{_holder(path)}'
    )
  mark = secrets.token_hex(_MARK // 2)
  lock.truncate(0)
  lock.write(f'{mark}pid {os.getpid()} on {socket.gethostname()}'.encode())
  lock.flush()
  os.fsync(lock.fileno())
  return lock


def _holder(path: pathlib.Path) -> str:
  """Returns ` (pid PID on HOST)` for a lock file, or nothing if it is empty."""
  content = files.read_bytes(path) or b''
  process = content[_MARK:].decode(errors='replace')
  return f' ({process})' if process else ''


def _check_shared(workdir: pathlib.Path, patience: float) -> None:
  """Raises `ConfigError` unless this process sees process 0's claim in time."""
  expected = processes.from_first(_mark(workdir))
  deadline = time.monotonic() + patience
  while not np.array_equal(_mark(workdir), expected):
    if time.monotonic() > deadline:
      raise ConfigError(
        f'--workdir={workdir}: process {jax.process_index()} does not see '
        'the files of process 0 there; use a folder that all processes share'
      )
    time.sleep(0.1)


def _mark(workdir: pathlib.Path) -> np.ndarray:
  """Returns the bytes in the lock file, uint8[_MARK]."""
  content = files.read_bytes(workdir / _LOCK) or b''
  return np.frombuffer(content[:_MARK].ljust(_MARK), np.uint8)


def _refuse_to_move(workdir: pathlib.Path) -> None:
  """Raises `ConfigError` if the working directory is in the folder."""
  here = pathlib.Path.cwd()
  if workdir.resolve() in (here, *here.parents):
    raise ConfigError(
      f'--workdir={workdir}: --restart cannot move aside the folder that the '
      'command runs in'
    )
  for lock in workdir.resolve().rglob(_LOCK):
    if _is_held(lock):
      raise BusyError(
        f'--workdir={workdir}: --restart cannot move aside {lock.parent}, '
        f'where another process is writing a run{_holder(lock)}'
      )


def _is_held(lock: pathlib.Path) -> bool:
  """Whether another process has claimed the folder of a lock file."""
  try:
    with lock.open('rb') as file:  # Others may look at the same time.
      return not _take(file, fcntl.LOCK_SH)
  except OSError:  # No lock file, or no right to read it.
    return False


def _compare(
  workdir: pathlib.Path,
  config: Mapping[str, Any],
  saved: Mapping[str, Any] | None,
) -> bool:
  """Returns whether `config.json` must be written; refuses another config.

  A finished run keeps its config until it resumes.
  """
  try:
    existing = records.read_config(workdir)
    lost = f'{workdir / records.CONFIG} is missing' if saved else ''
  except files.DamagedFile as error:
    existing, lost = None, str(error)
  is_lost = existing is None
  if existing is None:
    existing = saved
    if lost:
      print(f'{lost}; written again', file=sys.stderr)
  if existing is None:
    return True
  changed = [
    f'{field} was {old!r}, now {new!r}'
    for field, old, new in files.differences(
      completed(existing), completed(config)
    )
    if not may_change(field)
  ]
  if changed:
    raise ConfigError(
      f'--workdir={workdir} holds a run with another config: '
      f'{"; ".join(changed)}; choose another --workdir, or --restart'
    )
  return is_lost or not (workdir / records.SUMMARY).exists()
