"""The command line of a single run: its config, and its folder."""

from collections.abc import Mapping
import functools
import pathlib
import signal
from typing import Any, NoReturn

import ml_collections

from selsync_jax.cluster import signals
from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.config import RunError
from selsync_jax.runs import records


class Interrupted(RunError):
  """A signal stopped the run, and everything is saved."""

  code = signals.RESUMABLE

  def __init__(self, stopped: Exception):
    super().__init__(f'{stopped}; the same command resumes the run')


class RunCommandLine(config_file.ConfigCommandLine):
  """The flags of a command that writes a run.

  Args:
    command: a name in `COMMANDS`.
    folder: what the names of default folders begin with.

  Attributes:
    workdir: the flag: folder of the run, or `None`.
    restart: the switch: whether to move a run in it aside.
    report: the switch: whether to write the page of the run at its end.
  """

  def __init__(self, command: str, folder: str = ''):
    super().__init__(command)
    self._folder = folder
    self.workdir = self.flag(
      'workdir',
      flags.folder,
      None,
      'Folder of the run. A run in it resumes where it stopped. '
      f'Default: runs/{folder}CONFIG-METHOD.',
    )
    self.restart = self.switch(
      'restart', False, 'Move a run in the workdir aside, and start again.'
    )
    self.report = self.switch(
      'report', True, 'At the end, write WORKDIR/report.html and its figures.'
    )

  def folder(self, config: ml_collections.ConfigDict) -> pathlib.Path:
    """The folder of the run; by default named after config and variant."""
    if self.workdir.value:
      return self.workdir.value
    names = [self.config_name, *(self.variant or [config.sync.method])]
    return pathlib.Path('runs') / (self._folder + '-'.join(names))


def handle_signals(workdir: pathlib.Path) -> None:
  """Ends the process in one line after a signal, wherever it is, from now on.

  Args:
    workdir: of the run; says whether there is one to resume.
  """
  signals.Handler(functools.partial(_stop, workdir)).start()


def _stop(workdir: pathlib.Path, number: int) -> NoReturn:
  """Ends the process where no step is under way."""
  if (workdir / records.CONFIG).exists():
    reason = 'stopped by a signal; the same command resumes the run'
    signals.stop(signals.RESUMABLE, reason)
  name = signal.Signals(number).name
  signals.stop(signals.STOPPED, f'stopped by {name} before the run began')


def show(
  summary: Mapping[str, Any], workdir: pathlib.Path, report: bool
) -> None:
  """Prints the summary of a run, and writes its page if it is wanted."""
  from selsync_jax.report import facts

  facts.show(summary)
  if report:
    from selsync_jax.report import run_page  # Imports matplotlib.

    print(run_page.write([workdir], workdir))
