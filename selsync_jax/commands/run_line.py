"""The command line of a single run."""

import argparse
from collections.abc import Mapping
import functools
import pathlib
import signal
from typing import Any, NoReturn

from selsync_jax.cluster import signals
from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.config import RunError


class Interrupted(RunError):
  """An error that a signal stopped the run, after everything was saved."""

  code = signals.RESUMABLE

  def __init__(self, stopped: Exception):
    super().__init__(f'{stopped}; the same command resumes the run')


def command_line(command: str, folder: str = '') -> flags.CommandLine:
  """Returns the flags of a command that writes a run.

  Args:
    command: a name in `COMMANDS`.
    folder: the beginning of the default folder's name.
  """
  line = flags.CommandLine(command, config=config_file.DEFAULT)
  line.flag(
    'workdir',
    flags.folder,
    None,
    'Folder of the run. A run in it resumes where it stopped. '
    f'Default: runs/{folder}CONFIG-METHOD.',
  )
  line.switch(
    'restart', False, 'Move a run in the workdir aside, and start again.'
  )
  line.switch(
    'accept_changes',
    False,
    'Resume though the data or the code of the model have changed.',
  )
  line.switch(
    'report', True, 'At the end, write WORKDIR/report.html and its figures.'
  )
  return line


def load(options: argparse.Namespace, folder: str = '') -> None:
  """Adds the `settings` to the options, and a default for `workdir`.

  The default folder is named after the config file and its variant.
  """
  options.settings = config_file.settings(options.file, options.fields)
  config = options.settings.config
  if options.workdir is None:
    variant = config_file.variant(options.file) or [config.sync.method]
    name = '-'.join([config_file.stem(options.file), *variant])
    options.workdir = pathlib.Path('runs', folder + name)


def handle_signals(workdir: pathlib.Path) -> None:
  """Makes a signal end the process, with one line about how to go on.

  Args:
    workdir: the run's folder; it shows whether there is a run to resume.
  """
  signals.Handler(functools.partial(_stop, workdir)).start()


def _stop(workdir: pathlib.Path, number: int) -> NoReturn:
  from selsync_jax.runs import records

  if (workdir / records.CONFIG).exists():
    reason = 'stopped by a signal; the same command resumes the run'
    signals.stop(signals.RESUMABLE, reason)
  name = signal.Signals(number).name
  signals.stop(signals.STOPPED, f'stopped by {name} before the run began')


def show(
  summary: Mapping[str, Any], workdir: pathlib.Path, report: bool
) -> None:
  """Prints the summary of a run; if `report`, writes its page."""
  from selsync_jax.report import facts

  facts.show(summary)
  if report:
    from selsync_jax.report import run_page  # Imports matplotlib.

    print(run_page.write([workdir], workdir))
