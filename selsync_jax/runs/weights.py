"""The weights of a run: the consensus of its workers, for one device.

`weights/` holds the consensus of a run's best and last evaluation. At other
steps that have a checkpoint, the consensus is computed from the checkpoint.
"""

from collections.abc import Mapping
import contextlib
import math
import pathlib
import sys
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from selsync_jax.cluster import processes
from selsync_jax.config import ConfigError
from selsync_jax.config import RunError
from selsync_jax.devices import arrays
from selsync_jax.runs import checkpoints
from selsync_jax.runs import files
from selsync_jax.runs import formats
from selsync_jax.runs import manifest
from selsync_jax.runs import records
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.consensus import consensus

FOLDER = 'weights'
LAST, BEST = 'last', 'best'
SHARED = ('params', 'model_state')


class Weights(NamedTuple):
  """The consensus of a run at a step.

  Attributes:
    step: the number of the step.
    variables: the flax module's variables, on the host: `params` and the
      collections of the model's state.
    scores: the validation scores; empty if it was not evaluated.
  """

  step: int
  variables: dict[str, Any]
  scores: dict[str, float]


class Keeper:
  """The files with the consensus of a run's best and last evaluation.

  The best one up to the newest checkpoint is kept too, because a killed run
  resumes there. Only the first process writes.

  Args:
    workdir: the run's folder.
    step: the last step so far.
  """

  def __init__(self, workdir: pathlib.Path, step: int):
    self._workdir = workdir
    self._losses: dict[int, float] = {}
    if not processes.is_first():
      return
    for saved, path in _files(workdir).items():
      try:
        if saved > step:  # This step will be repeated.
          path.unlink()
        else:
          self._losses[saved] = _loss(formats.read_about(path))
      except files.DamagedFile as error:
        aside = files.unused(path.with_suffix('.damaged'))
        path.rename(aside)
        print(f'{error}; moved to {aside}', file=sys.stderr)
      except RunError as error:  # It may be readable another time.
        print(f'{error}; it is left out', file=sys.stderr)

  def keep(
    self,
    step: int,
    mean: Mapping[str, Any],
    scores: Mapping[str, float],
    is_last: bool,
  ) -> None:
    """Keeps a consensus if it is the best so far, or the last of the run.

    Args:
      step: the step at which it was evaluated.
      mean: the consensus, `{'params', 'model_state'}`, worker-stacked.
      scores: the scores on validation.
      is_last: whether the run ends here.
    """
    loss = _loss({'scores': scores})
    best = min(self._losses.values(), default=math.inf)
    # Only process 0 knows the best, but all must take part in the copy.
    if not processes.from_first(np.asarray(loss < best or is_last)):
      return
    is_first = processes.is_first()
    copied = arrays.first_worker(mean, copies=is_first)
    if not is_first:
      return
    variables = _variables(copied)
    path = _path(self._workdir, step)
    path.parent.mkdir(exist_ok=True)
    about = {'step': step, 'scores': dict(scores)}
    formats.write_safetensors(path, variables, about)
    self._losses[step] = loss
    self._forget()

  def _forget(self) -> None:
    losses = self._losses
    saved = max(checkpoints.steps(self._workdir), default=0)
    before = [step for step in losses if step <= saved]
    kept = {max(losses), min(losses, key=losses.__getitem__)}
    kept |= {min(before, key=losses.__getitem__)} if before else set()
    for step in losses.keys() - kept:
      _path(self._workdir, step).unlink(missing_ok=True)
      del losses[step]


def read(workdir: pathlib.Path, step: int | str = LAST) -> Weights:
  """Returns the weights of a run at a step.

  Args:
    workdir: the run's folder; the run may be unfinished.
    step: a number, `LAST`, or `BEST`: the evaluation with the lowest
      validation loss.

  Raises:
    ConfigError: if there is no such run, or it has no weights at this step.
    RunError: if the weights are damaged, or cannot be read.
  """
  config = records.read_config(workdir)
  if config is None:
    raise ConfigError(
      f'{workdir}: not the workdir of a run, no {records.CONFIG}'
    )
  kept, saved = _files(workdir), checkpoints.steps(workdir)
  number = _resolve(workdir, step, kept, saved)
  damage = None
  if number in kept:
    try:
      variables, about = formats.read_safetensors(kept[number])
      return Weights(number, variables, about['scores'])
    except RunError as error:
      damage = error  # That step may have a checkpoint as well.
  if number in saved:
    try:
      shared = _average(saved[number], config)
    except ConfigError as error:
      raise damage or ConfigError(f'step={step}: {error}') from error
    return Weights(number, _variables(shared), {})
  assert damage is not None
  raise damage


def _resolve(workdir, step, kept, saved) -> int:
  if step == BEST:
    losses = {}
    for number, path in kept.items():
      with contextlib.suppress(RunError):
        losses[number] = _loss(formats.read_about(path))
    if losses:
      return min(losses, key=losses.__getitem__)
    raise ConfigError(f'{workdir}: this run has not been evaluated yet')
  steps = sorted(kept.keys() | saved.keys())
  if not steps:
    raise ConfigError(f'{workdir}: this run has not saved anything yet')
  number = steps[-1] if step == LAST else step
  if number not in steps:
    names = ', '.join(map(str, steps))
    raise ConfigError(
      f'step={step}: {workdir} has the weights of steps {names}; '
      f'{BEST} and {LAST} name two of them'
    )
  return number


def _average(
  checkpoint: pathlib.Path, config: Mapping[str, Any]
) -> dict[str, Any]:
  """Computes the consensus of the workers in a checkpoint, on the host.

  Raises:
    ConfigError: if the checkpoint lacks what the consensus needs.
    DamagedFile: if the checkpoint is damaged.
  """
  if damage := manifest.damage(checkpoint):
    raise files.DamagedFile(checkpoint, damage)
  only = (
    f'such a run has the weights of its best evaluation (step={BEST}), and '
    f'of its last once it has finished (step={LAST})'
  )
  folder = checkpoint / 'state'
  with ocp.PyTreeCheckpointer() as checkpointer:
    tree = checkpointer.metadata(folder.absolute()).item_metadata.tree
    if 'params' not in tree:
      raise ConfigError(
        f'{checkpoint} is of an asynchronous run, which saves no state by '
        f'worker; {only}'
      )
    shared = {name: tree[name] for name in SHARED if tree.get(name)}
    recomputes = config['sync'].get('model_state') == 'recompute'
    if recomputes and 'model_state' in shared:
      raise ConfigError(
        f'{checkpoint} lacks the recomputed batch statistics; {only}'
      )
    on_host = ocp.RestoreArgs(restore_type=np.ndarray)
    stacked = checkpointer.restore(
      folder.absolute(),
      args=ocp.args.PyTreeRestore(
        shared,
        restore_args=jax.tree.map(lambda _: on_host, shared),
        partial_restore=True,
      ),
    )
  return arrays.first_worker(
    jax.jit(jax.vmap(consensus, axis_name=AXIS))(stacked)
  )


def _variables(shared: Mapping[str, Any]) -> dict[str, Any]:
  return {'params': shared['params'], **shared.get('model_state', {})}


def _loss(about: Mapping[str, Any]) -> float:
  """Returns the validation loss; infinity if it is not finite or missing."""
  loss = about['scores'].get('validation_loss')
  return loss if loss is not None and math.isfinite(loss) else math.inf


def _path(workdir: pathlib.Path, step: int) -> pathlib.Path:
  return workdir / FOLDER / f'{step}.safetensors'


def _files(workdir: pathlib.Path) -> dict[int, pathlib.Path]:
  paths = (workdir / FOLDER).glob('*.safetensors')
  return {int(path.stem): path for path in paths if path.stem.isdecimal()}
