"""The command line of what reads the weights of a run, and JAX for it."""

from collections.abc import Sequence
import pathlib

from selsync_jax.commands import flags
from selsync_jax.config import ConfigError
from selsync_jax.runs import records


def _step(text: str) -> int | str:
  if text.isdecimal():
    return int(text)
  if text not in ('best', 'last'):
    raise ValueError('must be a step, best or last')
  return text


class WeightsCommandLine(flags.CommandLine):
  """The flags of a command that reads the weights of one run.

  Args:
    command: a name in `COMMANDS`.

  Attributes:
    step: the flag: of the run, a number, `best` or `last`.
  """

  def __init__(self, command: str):
    super().__init__(command, positional='WORKDIR')
    self.step = self.flag(
      'step',
      _step,
      'last',
      'A step with a checkpoint; or best, the lowest validation loss.',
    )

  def folder(self, arguments: Sequence[str]) -> pathlib.Path:
    """Parses the arguments; returns the workdir.

    Raises:
      ConfigError: if there is none, or more than one.
    """
    workdirs = self.parse(arguments)
    if len(workdirs) != 1:
      raise ConfigError(f'needs one WORKDIR, got {len(workdirs)}')
    return pathlib.Path(workdirs[0])


def start_jax(workdir: pathlib.Path) -> None:
  """Starts JAX, on the CPU if the run was confined to it.

  A run on accelerators can be read where there are none.

  Raises:
    ConfigError: if JAX cannot start.
  """
  from selsync_jax.devices import backend  # Imports JAX.

  config = records.read_config(workdir) or {}
  backend.start('cpu' if config.get('device') == 'cpu' else 'auto')
