"""Saves and restores worker-stacked state in a workdir, with orbax.

A checkpoint is complete or absent: orbax renames it into place. A manifest of
checksums beside it detects later damage. A checkpoint holds arrays and JSON
only, nothing that could be executed.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import errno
import logging
import math
import os
import pathlib
import sys
from typing import Any, TypedDict

import jax
import numpy as np
import orbax.checkpoint as ocp

from selsync_jax.cluster import processes
from selsync_jax.config import ConfigError
from selsync_jax.config import RunError
from selsync_jax.devices import arrays
from selsync_jax.runs import files
from selsync_jax.runs import manifest

FOLDER, DAMAGED = 'checkpoints', 'damaged-checkpoint'
FORMAT = 7  # Of state and record; raise it whenever either changes.
_RECORD = pathlib.Path('record', 'metadata')  # The file of orbax's JsonSave.


class _Totals(TypedDict):
  clock: dict
  skips: list[int]


class _Record(TypedDict):
  totals: _Totals
  workers: int
  batch_size: int
  learning_rate: float
  epoch: float
  config: dict
  metrics: list[list[int]]
  loss: float | None


class CheckpointError(RunError):
  """A checkpoint could not be written, or none can be used."""


def peek_record(workdir: pathlib.Path) -> dict[str, Any] | None:
  """The record of the newest readable checkpoint, without opening the others.

  It reads one JSON file, so it can run before anything else is prepared. The
  checkpoint may still turn out to be damaged: `Checkpoints` checks.

  Raises:
    CheckpointError: if its format is another one, saying what to do.
  """
  for path in _steps(workdir / FOLDER):
    if manifest.damage(path, _RECORD) is None:
      return _read_record(path)
  return None


def steps(workdir: pathlib.Path) -> dict[int, pathlib.Path]:
  """The folders of the complete checkpoints of a run, by step."""
  return {int(path.name): path for path in _steps(workdir / FOLDER)}


def _steps(folder: pathlib.Path) -> list[pathlib.Path]:
  """The complete checkpoints in a folder, the newest first."""
  steps = [p for p in folder.glob('*') if p.name.isdecimal() and p.is_dir()]
  return sorted(steps, key=lambda p: int(p.name), reverse=True)


def _read_record(path: pathlib.Path) -> dict[str, Any]:
  """The record of a checkpoint.

  Raises:
    CheckpointError: if its format is another one, saying what to do.
    DamagedFile: if it is not a record.
  """
  record = files.read(path / _RECORD, dict)
  if record is None:
    raise files.DamagedFile(path / _RECORD, 'it is missing')
  if (found := record.get('format', 1)) == FORMAT:
    return files.read(path / _RECORD, _Record)
  age = 'an earlier' if found < FORMAT else 'a later'
  raise CheckpointError(
    f'{path} was written by {age} version (format {found}), which this one '
    'cannot read; use that version, or start over with --restart'
  )


def _inspect(folder: pathlib.Path) -> tuple[dict[pathlib.Path, str], int]:
  """Looks for damage, from the newest checkpoint to the first intact one.

  Returns:
    What is wrong with each damaged checkpoint, and the step of the intact one;
    -1 if there is none.
  """
  damaged: dict[pathlib.Path, str] = {}
  for path in _steps(folder):
    damage = manifest.damage(path)
    if damage is None:
      return damaged, int(path.name)
    damaged[path] = damage
  return damaged, -1


def _move_aside(path: pathlib.Path, damage: str) -> None:
  aside = files.unused(path.parents[1] / f'{DAMAGED}-{path.name}')
  path.rename(aside)
  print(
    f'checkpoint {path.name} is damaged ({damage}); moved to {aside}',
    file=sys.stderr,
  )


class _NewestAndBest:
  """Orbax's policy: keeps the newest, and the one with the lowest loss.

  Args:
    count: of the newest.
    losses: on validation, by step; updated by the owner.
  """

  def __init__(self, count: int, losses: Mapping[int, float]):
    self._count, self._losses = count, losses

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: Any
  ) -> list[bool]:
    """Whether to keep each of the checkpoints, which ascend by step."""
    del context
    steps = [checkpoint.step for checkpoint in checkpoints]
    kept = set(steps[-self._count :])
    if scored := [step for step in steps if step in self._losses]:
      kept.add(min(scored, key=self._losses.__getitem__))
    return [step in kept for step in steps]


class Checkpoints:
  """The checkpoints of one run: the state of every worker, and a JSON record.

  To create one only reads. Entering it moves damaged checkpoints aside, from
  the newest to the first that is intact; only one process of those that claim
  the folder may do so.

  Args:
    workdir: the run's folder.
    keep: how many of the newest to keep; the one with the lowest validation
      loss is kept as well.
    config: the run's config, for the records.
    restart: whether what is there will have been moved aside.

  Attributes:
    record: the record of the newest intact checkpoint; `None` if there is
      none.

  Raises:
    CheckpointError: if its format is another one, saying what to do.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    keep: int,
    config: Mapping[str, Any],
    restart: bool = False,
  ):
    self._workdir, self._keep, self._config = workdir, keep, config
    self._folder = (workdir / FOLDER).absolute()
    self._damaged, newest = {}, -1
    if processes.is_first() and not restart:
      self._damaged, newest = _inspect(self._folder)
    self._newest = int(processes.from_first(np.asarray(newest)))
    # A process that does not share the folder is refused when it is claimed.
    is_there = self._newest >= 0 and self._path(self._newest).exists()
    self.record = _read_record(self._path(self._newest)) if is_there else None

  def __enter__(self) -> 'Checkpoints':
    """Opens the folder.

    Raises:
      CheckpointError: if every checkpoint is damaged.
      ConfigError: if another process has written one meanwhile.
    """
    with _as_checkpoint_error():
      for path, damage in self._damaged.items():
        _move_aside(path, damage)
    newest = max(steps(self._workdir), default=-1)
    if processes.is_first() and newest != self._newest:
      raise ConfigError(
        f'--workdir={self._workdir}: another process is writing a run there'
      )
    with _as_checkpoint_error():
      processes.wait_for_all('checkpoints')
    if self._newest < 0 and any(self._workdir.glob(f'{DAMAGED}-*')):
      raise CheckpointError(
        f'every checkpoint in {self._folder} was damaged; restore the folder '
        'from a copy, or start over with --restart'
      )
    with _as_checkpoint_error():
      self._losses = _losses(self._folder)
      self._manager = ocp.CheckpointManager(
        self._folder,
        options=ocp.CheckpointManagerOptions(
          preservation_policy=_NewestAndBest(self._keep, self._losses),
          cleanup_tmp_directories=True,
          lightweight_initialize=True,  # Reads nothing that may be damaged.
          async_options=ocp.AsyncOptions(
            post_finalization_callback=self._write_manifest
          ),
        ),
      )
    self._waiter = futures.ThreadPoolExecutor(1)
    self._saving = futures.Future()  # Of the save in the background.
    return self

  def __exit__(self, kind: Any, *exc: Any) -> None:
    """Waits for the save in the background."""
    self._waiter.shutdown(wait=False)
    succeeded = kind is None
    with (
      _as_checkpoint_error() if succeeded else contextlib.suppress(Exception)
    ):
      self._manager.close()

  @property
  def newest(self) -> str:
    """The newest complete checkpoint, in words."""
    with contextlib.suppress(Exception):  # A failed save does not count.
      self._manager.wait_until_finished()
    step = self._manager.latest_step()
    return 'none' if step is None else f'step {step}'

  def save(
    self, step: int, state: Any, record: dict[str, Any], loss: float | None
  ) -> None:
    """Starts a save; returns as soon as the state may be changed again.

    Args:
      step: the checkpoint's name.
      state: worker-stacked arrays of this process's workers.
      record: what JSON can hold; format, config and loss are added to it.
      loss: on validation at this step, if it was evaluated.
    """
    record = record | {'format': FORMAT, 'config': self._config, 'loss': loss}
    args = ocp.args.Composite(
      state=ocp.args.StandardSave(arrays.to_global(state)),
      record=ocp.args.JsonSave(record),
    )
    if loss is not None and math.isfinite(loss):
      self._losses[step] = loss
    with _as_checkpoint_error():
      self._manager.save(step, args=args, force=True)
    self._saving = self._waiter.submit(self._manager.wait_until_finished)

  def check(self) -> None:
    """Raises the error of the last save in the background; never waits.

    A thread waits instead. Orbax's own check takes a lock that it holds across
    a barrier; if a process has died, that would block for the whole time-out.
    """
    if self._saving.done():
      with _as_checkpoint_error():
        self._saving.result()

  def wait(self) -> None:
    """Returns when the last save is complete; raises its error."""
    with _as_checkpoint_error():
      self._manager.wait_until_finished()

  def restore(self, step: int, like: Any) -> Any:
    """The state in a checkpoint: of this process's workers, on the devices.

    Args:
      step: of the checkpoint.
      like: `jax.ShapeDtypeStruct`s. Their shardings say where each array
        goes: [local workers, ...], or [workers, ...] of a mesh. Without
        shardings they have the shapes that were saved, of all workers, and the
        arrays stay on the host.

    Raises:
      CheckpointError: if it holds other arrays.
    """
    if all(x.sharding is None for x in jax.tree.leaves(like)):
      template = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), like)
      return self._restore(step, template)
    restored = self._restore(step, arrays.to_global_shapes(like))
    return arrays.to_local(restored, like)

  def _restore(self, step: int, template: Any) -> Any:
    folder = self._manager.directory / str(step) / 'state'
    with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
      saved = handler.metadata(folder).tree
    # Orbax itself does not compare the shapes of arrays on the host.
    _check_shapes(self._path(step), saved, template)
    args = ocp.args.Composite(state=ocp.args.StandardRestore(template))
    return self._manager.restore(step, args=args)['state']

  def _path(self, step: int) -> pathlib.Path:
    return self._folder / str(step)

  def _write_manifest(self) -> None:
    """Called by orbax after the last write, before the renaming."""
    if processes.is_first():
      (folder,) = self._folder.glob('*orbax-checkpoint-tmp*')
      manifest.write(folder)


def silence_tensorstore() -> None:
  """Silences tensorstore's threads, so that only `CheckpointError` is reported.

  Every write that is still under way when a save fails would print a traceback
  from its own thread, because the event loop that it reports to is closed.
  """
  logging.getLogger('asyncio').setLevel(logging.CRITICAL)  # The same, logged.
  show = sys.unraisablehook

  def hook(unraisable):
    if str(unraisable.exc_value) != 'Event loop is closed':
      show(unraisable)

  sys.unraisablehook = hook


@contextlib.contextmanager
def _as_checkpoint_error() -> Iterator[None]:
  """Turns errors of orbax and tensorstore into a line a user can act on."""
  try:
    yield
  except Exception as error:
    text = ' '.join(str(error).split())
    if 'RESOURCE_EXHAUSTED' in text:  # How tensorstore reports a full disk.
      text = os.strerror(errno.ENOSPC)
    raise CheckpointError(f'checkpoint: {text[:300]}') from error


def _check_shapes(path: pathlib.Path, saved: Any, wanted: Any) -> None:
  """Raises `CheckpointError` if a checkpoint is of another model."""
  there, here = _shapes(saved), _shapes(wanted)
  for name in [*here, *there]:
    if there.get(name) != here.get(name):
      raise CheckpointError(
        f'{path} does not fit this model or method: {name} is '
        f'{there.get(name, "missing")} there and {here.get(name, "missing")} '
        'here; undo the change, or start over with --restart'
      )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  """The shapes of one worker's arrays, by name."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf.shape[1:]
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def _losses(folder: pathlib.Path) -> dict[int, float]:
  """The validation losses of the checkpoints that have one, by step."""
  losses = {}
  for path in _steps(folder):
    with contextlib.suppress(files.DamagedFile, CheckpointError):
      loss = _read_record(path)['loss']
      if loss is not None and math.isfinite(loss):
        losses[int(path.name)] = loss
  return losses
