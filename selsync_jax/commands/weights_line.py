"""The command line of commands that read the weights of a run."""

import argparse
import pathlib

from selsync_jax.commands import flags
from selsync_jax.config import ConfigError

_step = flags.reader(
  lambda text: text if text in ('best', 'last') else int(text),
  'a step, best or last',
  lambda step: isinstance(step, str) or step >= 0,
)


def command_line(command: str) -> flags.CommandLine:
  """Returns the flags of a command that reads weights.

  Args:
    command: a name in `COMMANDS`.
  """
  line = flags.CommandLine(command, positional='WORKDIR')
  line.flag(
    'step',
    _step,
    'last',
    'A step with a checkpoint; or best, the lowest validation loss.',
  )
  return line


def workdir(options: argparse.Namespace) -> pathlib.Path:
  """Returns the only positional argument.

  Raises:
    ConfigError: if there is none, or more than one.
  """
  if len(options.positional) != 1:
    raise ConfigError(f'needs one WORKDIR, got {len(options.positional)}')
  return pathlib.Path(options.positional[0])


def start_jax(workdir: pathlib.Path) -> None:
  """Starts JAX, on the CPU if the run's config asks for it, else anywhere.

  Raises:
    ConfigError: if JAX cannot start.
  """
  from selsync_jax.devices import backend  # Imports JAX.
  from selsync_jax.runs import records

  config = records.read_config(workdir) or {}
  backend.start('cpu' if config.get('device') == 'cpu' else 'auto')
