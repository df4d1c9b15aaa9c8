"""Write the weights of a run into one file, for any program.

The suffix chooses the format: safetensors, NumPy's .npz or an orbax folder.

  selsync export runs/digits-selsync --step=best --out=digits.safetensors
"""

from collections.abc import Sequence

from selsync_jax.commands import flags
from selsync_jax.commands import silence_orbax
from selsync_jax.commands import weights_line
from selsync_jax.config import ConfigError


def main(arguments: Sequence[str]) -> None:
  """Writes the weights.

  Raises:
    ConfigError: if there is a mistake on the command line.
    RunError: if the weights are damaged, or cannot be written.
  """
  line = weights_line.command_line('export')
  line.flag(
    'out',
    flags.folder,
    None,
    'FILE.safetensors, FILE.npz, or a new folder for orbax.',
  )
  options = line.parse(arguments)
  workdir = weights_line.workdir(options)
  if options.out is None:
    raise ConfigError('--out=FILE is missing')
  silence_orbax()
  weights_line.start_jax(workdir)
  from selsync_jax.runs import export

  step = export.export(workdir, options.out, options.step)
  print(f'{options.out}: the weights of step {step}')
