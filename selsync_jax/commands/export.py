"""Write the weights of a run into one file, for any program.

The suffix chooses the format: safetensors, NumPy's .npz or an orbax folder.

  selsync export runs/digits-selsync --step=best --out=digits.safetensors
"""

from collections.abc import Sequence

from absl import logging

from selsync_jax.commands import flags
from selsync_jax.commands import weights_line
from selsync_jax.config import ConfigError


def main(arguments: Sequence[str]) -> None:
  """Writes the weights.

  Raises:
    ConfigError: for a mistake on the command line.
    RunError: if the weights are damaged, or cannot be written.
  """
  line = weights_line.WeightsCommandLine('export')
  out = line.flag(
    'out',
    flags.folder,
    None,
    'FILE.safetensors, FILE.npz, or a new folder for orbax.',
  )
  workdir = line.folder(arguments)
  if out.value is None:
    raise ConfigError('--out=FILE is missing')
  logging.set_verbosity(logging.FATAL)  # Orbax also logs what it raises.
  weights_line.start_jax(workdir)
  from selsync_jax.runs import export

  step = export.export(workdir, out.value, line.step.value)
  print(f'{out.value}: the weights of step {step}')
