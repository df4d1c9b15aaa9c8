"""Saves and restores worker-stacked state in a workdir, with orbax.

A checkpoint is complete or absent, because orbax renames it into place. A
manifest in it, the size and CRC-32 of each file, detects later damage. It holds
only arrays and JSON, nothing that could be executed.
"""

from collections.abc import Callable, Generator, Iterator
from concurrent import futures
import contextlib
import io
import json
import pathlib
import shutil
import sys
from typing import Any, NamedTuple, TypedDict
import zipfile
import zlib

import jax
import numpy as np
import orbax.checkpoint as ocp

from selsync_jax import user_errors
from selsync_jax.array_names import by_name
from selsync_jax.cluster import processes
from selsync_jax.config import BusyError, RunError
from selsync_jax.devices import arrays
from selsync_jax.runs import files
from selsync_jax.runs.ledger import Totals

FOLDER = 'checkpoints'
DAMAGED, UNSHARED = 'damaged-checkpoint', 'unshared-checkpoint'
FORMAT = 10  # Raise it whenever the state or the record changes.
RECORD = pathlib.Path('record', 'metadata')  # Where orbax's JsonSave writes.
MANIFEST = 'manifest.json'
# Orbax adds time stamps to its own file after the manifest is written.
_NOT_LISTED = (MANIFEST, '_CHECKPOINT_METADATA')
_UNFINISHED = '.orbax-checkpoint-tmp'  # After the step, while orbax saves.
_ARRAYS = 'arrays'  # The state in a message that was packed from memory.
# Seconds that a save may take, orbax's default. It is long because a slow disk
# is no error; but a disk that never answers must not block a run forever.
_LIMIT = 1200


class _Record(TypedDict):
  totals: Totals
  workers: int
  batch_size: int
  learning_rate: float
  epoch: float
  config: dict
  metrics: list[list[int]]


class Choice(NamedTuple):
  """The checkpoint that a run resumes from.

  Attributes:
    step: the checkpoint's step; -1 if there is no checkpoint.
    content: another program's copy, as `packed` or `packed_state`, if this
      program has none.
  """

  step: int
  content: bytes | None = None


Choose = Callable[[Iterator[pathlib.Path]], Choice]
"""Chooses one of the checkpoints in these folders, newest first.

Every process calls it, and only the first process gets folders.
"""


def newest(found: Iterator[pathlib.Path]) -> Choice:
  """Chooses the newest checkpoint."""
  path = next(found, None)
  return Choice(int(path.name) if path else -1)


class CheckpointError(RunError):
  """A checkpoint could not be written, or none can be used."""


def peek_record(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Returns the record of the newest checkpoint whose record is intact.

  It reads one JSON file, and does not check the rest of the checkpoint.
  """
  found = reversed(steps(workdir).values())
  intact = (path for path in found if damage(path, RECORD) is None)
  return next(map(read_record, intact), None)


def steps(workdir: pathlib.Path) -> dict[int, pathlib.Path]:
  """Returns the folders of a run's complete checkpoints, by ascending step."""
  paths = (workdir / FOLDER).glob('*')
  found = {int(p.name): p for p in paths if p.name.isdecimal() and p.is_dir()}
  return dict(sorted(found.items()))


def candidates(workdir: pathlib.Path) -> set[int]:
  """Returns the steps from which a run that is killed now may resume.

  These are the steps of the newest checkpoint and of a save in progress.
  """
  # In this order, a save that ends meanwhile is found by either search.
  saving = [*(workdir / FOLDER).glob(f'*{_UNFINISHED}*')]
  newest = max(steps(workdir), default=0)
  return {newest, *(int(path.name.partition('.')[0]) for path in saving)}


def read_record(path: files.File) -> dict[str, Any]:
  """Returns the record of a checkpoint; refuses a record of another version."""
  record = files.read(path / RECORD, dict)
  if record is None:
    raise files.DamagedFile(path / RECORD, 'it is missing')
  if (found := record.get('format', 1)) == FORMAT:
    return files.read(path / RECORD, _Record)
  age = 'an earlier' if found < FORMAT else 'a later'
  raise CheckpointError(
    f'{path} was written by {age} version (format {found}), which this one '
    'cannot read; use that version, or start over with --restart'
  )


def packed(folder: pathlib.Path) -> bytes:
  """Packs the files of a checkpoint and their checksums into one message."""
  whole = io.BytesIO()
  with zipfile.ZipFile(whole, 'w', strict_timestamps=False) as archive:
    for path in sorted(folder.rglob('*')):
      archive.write(path, path.relative_to(folder))
  return whole.getvalue()


def packed_state(state: Any, record: dict[str, Any]) -> bytes:
  """Packs a checkpoint from memory, without files; see `Checkpoints.save`.

  The state's leaves follow each other. All processes must call this; only the
  first returns a message.
  """
  whole = io.BytesIO()
  with zipfile.ZipFile(whole, 'w') as archive:
    archive.writestr(str(RECORD), json.dumps(record | {'format': FORMAT}))
    with archive.open(_ARRAYS, 'w', force_zip64=True) as file:
      file.writelines(arrays.contents(state))
  return whole.getvalue() if processes.is_first() else b''


def _unpacked(content: bytes) -> zipfile.Path:
  """Opens what `packed` or `packed_state` returned; it stays in memory."""
  return zipfile.Path(zipfile.ZipFile(io.BytesIO(content)))


def write_manifest(folder: pathlib.Path) -> None:
  """Writes the manifest of a checkpoint beside its files."""
  files.write(folder / MANIFEST, json.dumps(dict(_checksums(folder))))


def damage(
  folder: pathlib.Path, only: pathlib.PurePath | None = None
) -> str | None:
  """Describes the damage to a checkpoint's files, or to the `only` file.

  It returns `None` if they are intact. A file that cannot be read raises
  `RunError` instead: another attempt may succeed.
  """
  try:
    manifest = files.read(folder / MANIFEST, dict[str, list[int]])
    present = dict(_checksums(folder, str(only or '*')))
  except (files.DamagedFile, FileNotFoundError) as error:
    return str(error)
  if not manifest:
    return f'{MANIFEST} is missing or empty'
  for name in [str(only)] if only else manifest:
    if name not in present:
      return f'{name} is missing'
    if present[name] != manifest.get(name):
      return f'{name} does not match its checksum'
  return None


def _checksums(
  folder: pathlib.Path, pattern: str = '*'
) -> Iterator[tuple[str, list[int]]]:
  """Yields the relative path and `[size in bytes, CRC-32]` of every file."""
  for path in sorted(folder.rglob(pattern)):
    if path.is_file() and path.name not in _NOT_LISTED:
      content = files.read_bytes(path) or b''
      checksum = [len(content), zlib.crc32(content)]
      yield str(path.relative_to(folder)), checksum


@contextlib.contextmanager
def _as_checkpoint_error() -> Generator[None]:
  """Turns errors of orbax and tensorstore into one line."""
  try:
    yield
  except Exception as error:
    reason = user_errors.reason(error)[:300]
    raise CheckpointError(f'checkpoint: {reason}') from error


def _wait_unless_failed(**barrier: Any) -> None:
  """Waits for the other processes, unless a save has failed in this one.

  While an error is raised, orbax waits at one more barrier than the other
  processes, for as long as a save may take, and hides the error until then.
  """
  if sys.exception() is None:
    ocp.multihost.get_barrier_sync_fn()(**barrier)


class Checkpoints:
  """The checkpoints of one run: the state of every worker, and a JSON record.

  The constructor only reads. `choose` picks the checkpoint that the run resumes
  from, among intact ones or other programs' checkpoints. `record` is its
  record; `None` if there is no checkpoint, or with `restart`.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    restart: bool = False,
    choose: Choose = newest,
  ):
    self._workdir = workdir
    self._folder = (workdir / FOLDER).absolute()
    self._unusable: dict[pathlib.Path, tuple[str, str]] = {}
    look = processes.is_first() and not restart
    found = steps(workdir) if look else {}
    choice = choose(self._intact(found))
    for step, path in found.items():
      if step > choice.step or (choice.content and step == choice.step):
        why = UNSHARED, 'not on all islands'
        self._unusable.setdefault(path, why)
    kept = (step for step, path in found.items() if path not in self._unusable)
    self._on_disk, self._arrived = max(kept, default=-1), None
    if choice.content is not None:
      self._arrived = _unpacked(choice.content)
    record = None
    if processes.is_first() and choice.step >= 0:
      record = read_record(self._arrived or self.folder(choice.step))
    # A network file system may show the others a checkpoint later.
    known = processes.json_from_first([int(choice.step), record])
    self._newest, self.record = known

  def _intact(self, found: dict[int, pathlib.Path]) -> Iterator[pathlib.Path]:
    """Yields the folders of intact checkpoints, newest first."""
    for path in reversed(found.values()):
      if (reason := damage(path)) is None:
        yield path
      else:
        self._unusable[path] = DAMAGED, f'damaged ({reason})'

  @contextlib.contextmanager
  def opened(self, keep: int) -> Generator[None]:
    """Opens the claimed folder; waits at the end for the save in progress.

    It moves aside the checkpoints that are newer than the resumed one; if there
    are checkpoints, one must be usable. The `keep` newest checkpoints stay.
    """
    with _as_checkpoint_error():
      for path, (name, reason) in self._unusable.items():
        aside = self._workdir / f'{name}-{path.name}'
        aside = files.move_aside(path, aside)
        line = f'checkpoint {path.name} is {reason}; moved to {aside}'
        print(line, file=sys.stderr)
      if self._arrived and not (self._arrived / _ARRAYS).exists():
        if processes.is_first():
          self._extract(self._arrived)
        self._arrived, self._on_disk = None, self._newest
    found = max(steps(self._workdir), default=-1)
    if processes.is_first() and found != self._on_disk:
      raise BusyError(
        f'--workdir={self._workdir}: another process is writing a run there'
      )
    with _as_checkpoint_error():
      processes.wait_for_all('checkpoints')
    # Step 0 tests the first save; a kill while it is removed loses nothing.
    if self._newest < 0 and any(self._workdir.glob(f'{DAMAGED}-[1-9]*')):
      raise CheckpointError(
        f'every checkpoint in {self._folder} was damaged; restore the folder '
        'from a copy, or start over with --restart'
      )
    with _as_checkpoint_error():
      self._manager = ocp.CheckpointManager(
        self._folder,
        options=ocp.CheckpointManagerOptions(
          preservation_policy=ocp.checkpoint_managers.LatestN(keep),
          cleanup_tmp_directories=True,
          lightweight_initialize=True,  # Reads no file; it may be damaged.
          async_options=ocp.AsyncOptions(
            timeout_secs=_LIMIT,
            barrier_sync_fn=_wait_unless_failed,
            post_finalization_callback=self._write_manifest,
          ),
        ),
      )
    self._waiter = futures.ThreadPoolExecutor(1)
    self._saving = futures.Future()  # The save in the background.
    try:
      yield
    except BaseException:
      with contextlib.suppress(Exception):
        self._close()
      raise
    with _as_checkpoint_error():
      self._close()

  def _extract(self, arrived: zipfile.Path) -> None:
    """Writes the files of a packed checkpoint."""
    # If the process ends meanwhile, orbax removes a folder of this name.
    temporary = self._folder / f'{self._newest}{_UNFINISHED}'
    shutil.rmtree(temporary, ignore_errors=True)
    arrived.root.extractall(temporary)
    temporary.rename(self.folder(self._newest))

  def _close(self) -> None:
    self._waiter.shutdown(wait=False)
    self._manager.close()

  def folder(self, step: int) -> pathlib.Path:
    """Returns where the checkpoint of a step is, whether it exists or not."""
    return self._folder / str(step)

  @property
  def newest(self) -> str:
    """The newest complete checkpoint, for messages."""
    with contextlib.suppress(Exception):  # A failed save does not count.
      self._manager.wait_until_finished()
    # Orbax forgets a replaced checkpoint before the new save has succeeded.
    step = max(steps(self._workdir), default=None)
    return 'none' if step is None else f'step {step}'

  def save(self, step: int, state: Any, record: dict[str, Any]) -> None:
    """Starts a save; returns as soon as the state may be changed again.

    The state is worker-stacked arrays of this process's workers. The format
    becomes part of the record.
    """
    args = ocp.args.Composite(
      state=ocp.args.StandardSave(arrays.to_global(state)),
      record=ocp.args.JsonSave(record | {'format': FORMAT}),
    )
    with _as_checkpoint_error():
      self._manager.save(step, args=args, force=True)
    self._saving = self._waiter.submit(self._manager.wait_until_finished)

  @_as_checkpoint_error()
  def check(self) -> None:
    """Raises the error of the last save in the background; never waits.

    Orbax's own check would block until the time-out if a process has died,
    because it takes a lock that is held across a barrier.
    """
    if self._saving.done():
      self._saving.result()

  @_as_checkpoint_error()
  def wait(self) -> None:
    """Returns when the last save is complete; raises its error."""
    self._manager.wait_until_finished()

  def rehearse(self, state: Any, record: dict[str, Any]) -> None:
    """Saves a state at step 0 and removes it; raises the error of the save."""
    self.save(0, state, record)
    self.wait()
    with _as_checkpoint_error():
      self._manager.delete(0)

  def restore(self, like: Any) -> Any:
    """Returns the state in the resumed checkpoint.

    `like` are `jax.ShapeDtypeStruct`s with shardings that place the arrays of
    this process's workers, [local workers, ...], or a mesh's arrays,
    [workers, ...]. Without shardings, the arrays of all workers stay on the
    host. It raises `CheckpointError` if the checkpoint holds other arrays.
    A state that has come from memory is saved here in the background.
    """
    if self._arrived:
      with (self._arrived / _ARRAYS).open('rb') as file:
        state = arrays.from_contents(file.read, like)
      self._arrived = None
      self.save(self._newest, state, self.record)
      return state
    on_host = all(x.sharding is None for x in jax.tree.leaves(like))
    if on_host:
      template = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), like)
    else:
      template = arrays.to_global_shapes(like)
    step = self._newest
    folder = self._manager.directory / str(step) / 'state'
    with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
      saved = handler.metadata(folder).tree
    # Orbax does not compare the shapes of arrays on the host.
    _check_shapes(self._folder / str(step), saved, template)
    args = ocp.args.Composite(state=ocp.args.StandardRestore(template))
    restored = self._manager.restore(step, args=args)['state']
    return restored if on_host else arrays.to_local(restored, like)

  def _write_manifest(self) -> None:
    """Writes the manifest; orbax calls it before it renames the checkpoint."""
    if processes.is_first():
      (folder,) = self._folder.glob(f'*{_UNFINISHED}*')
      write_manifest(folder)


def _check_shapes(path: pathlib.Path, saved: Any, wanted: Any) -> None:
  """Raises `CheckpointError` unless saved and wanted shapes agree."""
  there, here = _shapes(saved), _shapes(wanted)
  for name in [*here, *there]:
    if there.get(name) != here.get(name):
      raise CheckpointError(
        f'{path} does not fit this model or method: {name} is '
        f'{there.get(name, "missing")} there and {here.get(name, "missing")} '
        'here; undo the change, resume with the version that wrote it, or '
        'start over with --restart'
      )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  return {name: leaf.shape[1:] for name, leaf in by_name(tree).items()}
