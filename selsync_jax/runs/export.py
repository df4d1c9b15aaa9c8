"""Takes the weights out of a run: into this process, or into a file."""

from collections.abc import Callable
import json
import pathlib
import tempfile
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import orbax.checkpoint as ocp

from selsync_jax import blame
from selsync_jax import models
from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError
from selsync_jax.config import RunError
from selsync_jax.runs import files
from selsync_jax.runs import provenance
from selsync_jax.runs import records
from selsync_jax.runs import weights
from selsync_jax.runs.weights import About
from selsync_jax.runs.weights import Variables


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
  write(out, found.variables, about)
  return found.step


def _write_npz(path: pathlib.Path, variables: Variables, about: About) -> None:
  """Writes a file for `np.load`, with bfloat16 as float32."""
  arrays: dict[str, Any] = {
    name: array.astype(np.float32) if array.dtype.kind == 'V' else array
    for name, array in weights.flat(variables).items()
  }
  arrays[weights.ABOUT] = np.array(json.dumps(about))
  with files.replaced(path) as temporary, temporary.open('wb') as file:
    np.savez(file, allow_pickle=False, **arrays)


def _write_orbax(
  path: pathlib.Path, variables: Variables, about: About
) -> None:
  """Writes a folder for `StandardCheckpointer.restore`."""
  with tempfile.TemporaryDirectory(
    dir=path.parent, prefix=f'.{path.name}.', ignore_cleanup_errors=True
  ) as folder:
    written = pathlib.Path(folder).absolute() / 'weights'
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(
        written,
        jax.tree.map(np.asarray, dict(variables)),
        custom_metadata={weights.ABOUT: dict(about)},
      )
    written.rename(path)


_WRITERS: dict[str, Callable[[pathlib.Path, Variables, About], None]] = {
  '.safetensors': weights.write_safetensors,
  '.npz': _write_npz,
  '': _write_orbax,
}


def _check(path: pathlib.Path) -> None:
  if path.suffix not in _WRITERS:
    raise ConfigError(
      f'--out={path}: must end in .safetensors or .npz, or be a folder without '
      'a suffix, for orbax'
    )
  if path.exists():
    raise ConfigError(f'--out={path}: exists already; choose another name')
  if not path.parent.is_dir():
    raise ConfigError(f'--out={path}: there is no folder {path.parent}')


def write(path: pathlib.Path, variables: Variables, about: About) -> None:
  """Writes variables in the format that the suffix of a checked path names."""
  try:
    _WRITERS[path.suffix](path, variables, about)
  except (OSError, ValueError) as error:  # tensorstore raises ValueError.
    raise RunError(f'{path}: {blame.reason(error)}') from error
