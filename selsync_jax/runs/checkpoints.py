"""Saves and restores worker-stacked state in a workdir, with orbax.

A checkpoint is complete or absent, because orbax renames it into place. A
manifest of checksums in it detects later damage. It holds only arrays and JSON,
nothing that could be executed.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import math
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
FORMAT = 7  # Raise it whenever the state or the record changes.
_RECORD = pathlib.Path('record', 'metadata')  # Where orbax's JsonSave writes.


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
  """An error that a checkpoint could not be written, or none can be used."""


def peek_record(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Returns the record of the newest checkpoint whose record is intact.

  It reads one JSON file, and does not check the rest of the checkpoint.

  Raises:
    CheckpointError: if another version wrote it.
  """
  for path in _steps(workdir / FOLDER):
    if manifest.damage(path, _RECORD) is None:
      return _read_record(path)
  return None


def steps(workdir: pathlib.Path) -> dict[int, pathlib.Path]:
  """Returns the folders of the complete checkpoints of a run, by step."""
  return {int(path.name): path for path in _steps(workdir / FOLDER)}


def _steps(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the complete checkpoints in a folder, the newest first."""
  steps = [p for p in folder.glob('*') if p.name.isdecimal() and p.is_dir()]
  return sorted(steps, key=lambda p: int(p.name), reverse=True)


def _read_record(path: pathlib.Path) -> dict[str, Any]:
  """Returns the record of a checkpoint.

  Raises:
    CheckpointError: if another version wrote it.
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
    The damage of each damaged checkpoint, and the step of the intact one or -1.
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
  """An orbax policy: keeps the newest, and the one with the lowest loss."""

  def __init__(self, count: int, losses: Mapping[int, float]):
    self._count, self._losses = count, losses

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: Any
  ) -> list[bool]:
    """Returns whether to keep each of the checkpoints, which ascend by step."""
    del context
    steps = [checkpoint.step for checkpoint in checkpoints]
    kept = set(steps[-self._count :])
    if scored := [step for step in steps if step in self._losses]:
      kept.add(min(scored, key=self._losses.__getitem__))
    return [step in kept for step in steps]


class Checkpoints:
  """The checkpoints of one run: the state of every worker, and a JSON record.

  The constructor only reads. Entering the context moves aside the damaged
  checkpoints that are newer than the newest intact one; the folder must have
  been claimed before.

  Args:
    workdir: the run's folder.
    keep: how many of the newest to keep; the one with the lowest validation
      loss is kept as well.
    config: the run's config, which the records contain.
    restart: whether to ignore existing checkpoints.

  Attributes:
    record: the record of the newest intact checkpoint; `None` if there is
      none.

  Raises:
    CheckpointError: if another version wrote it.
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
    # The claim will reject a process that does not share the folder.
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
          lightweight_initialize=True,  # Reads no file; it may be damaged.
          async_options=ocp.AsyncOptions(
            post_finalization_callback=self._write_manifest
          ),
        ),
      )
    self._waiter = futures.ThreadPoolExecutor(1)
    self._saving = futures.Future()  # The save in the background.
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
    """The newest complete checkpoint, for messages."""
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
      record: a JSON object, to which format, config and loss are added.
      loss: the validation loss, if it was evaluated.
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

    Orbax's own check would block until the time-out if a process has died,
    because it takes a lock that is held across a barrier.
    """
    if self._saving.done():
      with _as_checkpoint_error():
        self._saving.result()

  def wait(self) -> None:
    """Returns when the last save is complete; raises its error."""
    with _as_checkpoint_error():
      self._manager.wait_until_finished()

  def rehearse(self, state: Any, record: dict[str, Any]) -> None:
    """Saves a state at step 0, reads it back, compares, and removes it.

    Raises:
      CheckpointError: if the state cannot be saved, or is not what was saved.
    """
    self.save(0, state, record, None)
    self.wait()
    like = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=getattr(x, 'sharding', None)
      ),
      state,
    )
    restored = self.restore(0, like)
    for (path, one), other in zip(
      jax.tree.leaves_with_path(state), jax.tree.leaves(restored), strict=True
    ):
      if _content(one) != _content(other):
        name = jax.tree_util.keystr(path, simple=True, separator='/')
        raise CheckpointError(
          f'checkpoint: {name} was not read back as it was written'
        )
    with _as_checkpoint_error():
      self._manager.delete(0)

  def restore(self, step: int, like: Any) -> Any:
    """Returns the state in a checkpoint.

    Args:
      step: the checkpoint's step.
      like: `jax.ShapeDtypeStruct`s with shardings that place the arrays of
        this process's workers, [local workers, ...], or those of a mesh,
        [workers, ...]. Without shardings, the arrays of all workers stay on the
        host.

    Raises:
      CheckpointError: if the checkpoint holds other arrays.
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
    # Orbax does not compare the shapes of arrays on the host.
    _check_shapes(self._path(step), saved, template)
    args = ocp.args.Composite(state=ocp.args.StandardRestore(template))
    return self._manager.restore(step, args=args)['state']

  def _path(self, step: int) -> pathlib.Path:
    return self._folder / str(step)

  def _write_manifest(self) -> None:
    """Writes the manifest; orbax calls it before it renames the checkpoint."""
    if processes.is_first():
      (folder,) = self._folder.glob('*orbax-checkpoint-tmp*')
      manifest.write(folder)


@contextlib.contextmanager
def _as_checkpoint_error() -> Iterator[None]:
  """Turns errors of orbax and tensorstore into one line."""
  try:
    yield
  except Exception as error:
    reason = files.reason(error)[:300]
    raise CheckpointError(f'checkpoint: {reason}') from error


def _content(array: Any) -> list[bytes]:
  """Returns the bytes of an array, by shard of this process."""
  if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
    array = jax.random.key_data(array)
  if not isinstance(array, jax.Array):
    return [array.tobytes()]
  return [
    np.asarray(shard.data).tobytes() for shard in array.addressable_shards
  ]


def _check_shapes(path: pathlib.Path, saved: Any, wanted: Any) -> None:
  """Raises `CheckpointError` unless saved and wanted shapes agree."""
  there, here = _shapes(saved), _shapes(wanted)
  for name in [*here, *there]:
    if there.get(name) != here.get(name):
      raise CheckpointError(
        f'{path} does not fit this model or method: {name} is '
        f'{there.get(name, "missing")} there and {here.get(name, "missing")} '
        'here; undo the change, or start over with --restart'
      )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf.shape[1:]
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def _losses(folder: pathlib.Path) -> dict[int, float]:
  """Returns the validation losses of the checkpoints that have one, by step."""
  losses = {}
  for path in _steps(folder):
    with contextlib.suppress(files.DamagedFile, CheckpointError):
      loss = _read_record(path)['loss']
      if loss is not None and math.isfinite(loss):
        losses[int(path.name)] = loss
  return losses
