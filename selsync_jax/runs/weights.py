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

import flax.linen as nn
import jax
import numpy as np
import optax

from selsync_jax import models
from selsync_jax.cluster import processes
from selsync_jax.config import config_errors, ConfigError, RunError
from selsync_jax.devices import arrays
from selsync_jax.runs import (
  array_files,
  checkpoints,
  files,
  provenance,
  records,
)
from selsync_jax.sync.consensus import AXIS, consensus

FOLDER = 'weights'
LAST, BEST = 'last', 'best'


class Weights(NamedTuple):
  """The consensus of a run at a step."""

  step: int
  variables: dict[str, Any]  # On the host.
  scores: dict[str, float]  # On validation; empty if it was not evaluated.


class Keeper:
  """The files with the consensus of a run's best and last evaluation.

  The best consensus up to the newest checkpoint is kept too, because a killed
  run resumes there; likewise up to a checkpoint that is being written. Files
  after the last step so far are removed. Only the first process writes.
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
          self._losses[saved] = _loss(read_scores(path))
      except files.DamagedFile as error:
        aside = files.move_aside(path, path.with_suffix('.damaged'))
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

    `mean` is the worker-stacked `{'params', 'model_state'}` of this step; the
    scores are on validation.
    """
    about = {'step': step, 'scores': dict(scores)}
    loss, is_first = _loss(scores), processes.is_first()
    best = min(self._losses.values(), default=math.inf)
    # Only process 0 knows the best, but all must take part in the copy.
    if not processes.from_first(np.asarray(loss < best or is_last)):
      return
    copied = arrays.first_worker(mean, copies=is_first)
    if not is_first:
      return
    path = _path(self._workdir, step)
    path.parent.mkdir(exist_ok=True)
    array_files.write_safetensors(path, joined(copied), about)
    self._losses[step] = loss
    self._forget()

  def _forget(self) -> None:
    losses, last = self._losses, max(self._losses)
    kept = {last}
    for end in {last, *checkpoints.candidates(self._workdir)}:
      if before := [step for step in losses if step <= end]:
        kept.add(min(before, key=losses.__getitem__))
    for step in losses.keys() - kept:
      _path(self._workdir, step).unlink(missing_ok=True)
      del losses[step]


def read(workdir: pathlib.Path, step: int | str = LAST) -> Weights:
  """Returns the weights of a run, finished or not, at a step.

  The step is a number, `LAST`, or `BEST`: the evaluation with the lowest
  validation loss. It raises `ConfigError` if there are no such weights.
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
      variables, about = array_files.read_variables(kept[number])
      return Weights(number, variables, _scores(kept[number], about))
    except RunError as error:
      damage = error  # That step may have a checkpoint as well.
  if number in saved:
    try:
      shared = _average(saved[number], config)
    except ConfigError as error:
      raise damage or ConfigError(f'step={step}: {error}') from error
    return Weights(number, joined(shared), {})
  assert damage is not None
  raise damage


def _resolve(workdir, step, kept, saved) -> int:
  if step == BEST:
    losses = {}
    for number, path in kept.items():
      with contextlib.suppress(RunError):
        losses[number] = _loss(read_scores(path))
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

  It raises `ConfigError` if the checkpoint lacks what the consensus needs.
  """
  if damage := checkpoints.damage(checkpoint):
    raise files.DamagedFile(checkpoint, damage)
  only = (
    f'such a run has the weights of its best evaluation (step={BEST}) and, '
    f'once finished, of its last one (step={LAST})'
  )

  def shared(tree):
    if 'params' not in tree:
      raise ConfigError(
        f'{checkpoint} belongs to an asynchronous run, which saves no '
        f'state by worker; {only}'
      )
    names = 'params', 'ema', 'model_state'
    found = {name: tree[name] for name in names if tree.get(name)}
    recomputes = config['sync'].get('model_state') == 'recompute'
    if recomputes and 'model_state' in found:
      raise ConfigError(
        f'{checkpoint} lacks the recomputed batch statistics; {only}'
      )
    return found

  stacked = array_files.read_orbax(checkpoint / 'state', shared)
  workers = checkpoints.read_record(checkpoint)['workers']
  if len(jax.tree.leaves(stacked)[0]) < workers:
    raise ConfigError(
      f'{checkpoint} has the state of one island of {workers}; {only}'
    )
  if 'ema' in stacked:  # The evaluation used it.
    ema = stacked.pop('ema')
    stacked['params'] = optax.tree.cast_like(ema, stacked['params'])
  return arrays.first_worker(
    jax.jit(jax.vmap(consensus, axis_name=AXIS))(stacked)
  )


def joined(shared: Mapping[str, Any]) -> dict[str, Any]:
  """Returns `{'params', 'model_state'}` as the variables of flax."""
  return {'params': shared['params'], **shared.get('model_state', {})}


def _loss(scores: Mapping[str, float]) -> float:
  """Returns the validation loss; infinity if it is not finite or missing."""
  loss = scores.get('validation_loss')
  return loss if loss is not None and math.isfinite(loss) else math.inf


def _path(workdir: pathlib.Path, step: int) -> pathlib.Path:
  return workdir / FOLDER / f'{step}.safetensors'


def _files(workdir: pathlib.Path) -> dict[int, pathlib.Path]:
  paths = (workdir / FOLDER).glob('*.safetensors')
  return {int(path.stem): path for path in paths if path.stem.isdecimal()}


def read_scores(path: pathlib.Path) -> dict[str, float]:
  """Returns the scores in a run's file; arrays stay unread and unchecked."""
  return _scores(path, array_files.read_about(path))


def _scores(path: pathlib.Path, about: Mapping[str, Any]) -> dict[str, float]:
  if 'scores' not in about:
    raise files.DamagedFile(path, 'its header has no scores')
  return about['scores']


def load(
  workdir: str | pathlib.Path, step: int | str = LAST
) -> tuple[nn.Module, dict[str, Any]]:
  """Returns the model of a run and its variables: the consensus.

  It needs neither the run's devices nor its data set nor TensorFlow.

  Args:
    workdir: the run's folder; the run may be unfinished.
    step: a number, `'last'`, or `'best'`: the evaluation with the lowest
      validation loss.

  Returns:
    `(model, variables)`, on the first device;
    `model.apply(variables, inputs, train=False)` predicts. If the run trained
    an nnx module, `model.to_nnx(variables)` is that module.

  Raises:
    ConfigError: if there is no such run, it has no weights at this step, or
      its model is not registered.
    RunError: if the weights are damaged.
  """
  workdir = pathlib.Path(workdir).expanduser()
  found = read(workdir, step)
  config = records.read_config(workdir)
  outputs = records.read_data(workdir).get('num_classes')
  if config is None or outputs is None:
    missing = records.DATA if config else records.CONFIG
    raise files.DamagedFile(workdir / missing, 'it is missing')
  name = config['model']['name']
  if name not in models.MODELS:
    raise ConfigError(
      f'config.model.name={name!r}: this model is not registered here; '
      'import the file that registers it'
    )
  with config_errors('model'):
    model = models.create_model(num_outputs=outputs, **config['model'])
  return model, jax.device_put(found.variables, jax.local_devices()[0])


def export(
  workdir: pathlib.Path, out: pathlib.Path, step: int | str = LAST
) -> int:
  """Writes the weights of a run into one file or folder; returns their step.

  `out` is `FILE.safetensors`, `FILE.npz`, or a folder for orbax, and must not
  exist. See `load` for the rest.
  """
  _check(out)
  found = read(workdir, step)
  about = {
    'step': found.step,
    'scores': found.scores,
    'config': records.read_config(workdir),
    'sessions': provenance.sessions(workdir),
  }
  array_files.write(out, found.variables, about)
  return found.step


def _check(path: pathlib.Path) -> None:
  if path.suffix not in array_files.WRITERS:
    raise ConfigError(
      f'--out={path}: must end in .safetensors or .npz, or be a folder without '
      'a suffix, for orbax'
    )
  if path.exists():
    raise ConfigError(f'--out={path}: exists already; choose another name')
  if not path.parent.is_dir():
    raise ConfigError(f'--out={path}: there is no folder {path.parent}')
