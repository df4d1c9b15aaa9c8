"""Write the weights of a run into one file, for any program.

The suffix chooses the format: safetensors, NumPy's .npz or an orbax folder.

  selsync export runs/digits-selsync --step=best --out=digits.safetensors
"""

from collections.abc import Sequence
import pathlib

from selsync_jax.commands import flags, silence_orbax
from selsync_jax.config import ConfigError

_step = flags.reader(
  lambda text: text if text in ('best', 'last') else int(text),
  'a step, best or last',
  lambda step: isinstance(step, str) or step >= 0,
)


def command_line(command: str) -> flags.CommandLine:
  """Returns the flags of a command that reads weights."""
  line = flags.CommandLine(command, positional='WORKDIR')
  about = 'A step with a checkpoint; or best, the lowest validation loss.'
  line.flag('step', about, _step, 'last')
  return line


def start_jax(workdir: pathlib.Path, devices: int = 0) -> None:
  """Starts JAX, on the CPU if the run's config asks for it, else anywhere.

  `devices` is the number of virtual devices of a CPU; 0 keeps the default.
  """
  silence_orbax()
  from selsync_jax.devices import backend  # Imports JAX.
  from selsync_jax.runs import records

  config = records.read_config(workdir) or {}
  device = 'cpu' if config.get('device') == 'cpu' else 'auto'
  backend.start(device, workers=devices)


def main(arguments: Sequence[str]) -> None:
  """Writes the weights."""
  line = command_line('export')
  about = 'FILE.safetensors, FILE.npz, or a new folder for orbax.'
  line.flag('out', about, flags.folder)
  options = line.parse(arguments)
  if options.out is None:
    raise ConfigError('--out=FILE is missing')
  workdir = pathlib.Path(*options.positional)
  start_jax(workdir)
  from selsync_jax.runs import weights

  step = weights.export(workdir, options.out, options.step)
  print(f'{options.out}: the weights of step {step}')
