"""Takes the weights out of a run: into this process, or into a file."""

import pathlib
from typing import Any

import flax.linen as nn
import jax

from selsync_jax import models
from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError
from selsync_jax.runs import array_files
from selsync_jax.runs import files
from selsync_jax.runs import provenance
from selsync_jax.runs import records
from selsync_jax.runs import weights


def load(
  workdir: str | pathlib.Path, step: int | str = weights.LAST
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
  found = weights.read(workdir, step)
  config = records.read_config(workdir)
  outputs = records.read_data(workdir).get('num_classes')
  if config is None or outputs is None:
    missing = records.DATA if config else records.CONFIG
    raise files.DamagedFile(workdir / missing, 'it is missing')
  name = config['model']['name']
  if name not in models.MODELS:
    raise ConfigError(
      f'config.model.name={name!r}: nobody has registered this model here; '
      'import the file that does'
    )
  with config_errors('model'):
    model = models.create_model(num_outputs=outputs, **config['model'])
  return model, jax.device_put(found.variables, jax.local_devices()[0])


def export(
  workdir: pathlib.Path, out: pathlib.Path, step: int | str = weights.LAST
) -> int:
  """Writes the weights of a run into one file or folder; returns their step.

  `out` is `FILE.safetensors`, `FILE.npz`, or a folder for orbax, and must not
  exist. See `load` for the rest.
  """
  _check(out)
  found = weights.read(workdir, step)
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
