"""Write the weights of a run into one file, for any program.

The suffix chooses the format: safetensors, NumPy's .npz or an orbax folder.

  selsync export runs/digits-selsync --step=best --out=digits.safetensors
"""

from collections.abc import Sequence

from selsync_jax.commands import flags
from selsync_jax.commands import weights_line
from selsync_jax.config import ConfigError


def main(arguments: Sequence[str]) -> None:
  """Writes the weights."""
  line = weights_line.command_line('export')
  about = 'FILE.safetensors, FILE.npz, or a new folder for orbax.'
  line.flag('out', about, flags.folder)
  options = weights_line.parse(line, arguments)
  if options.out is None:
    raise ConfigError('--out=FILE is missing')
  weights_line.start_jax(options.workdir)
  from selsync_jax.runs import export

  step = export.export(options.workdir, options.out, options.step)
  print(f'{options.out}: the weights of step {step}')
