"""The command line of a single run."""

import argparse
from collections.abc import Mapping
import pathlib
import signal
from typing import Any

from selsync_jax.cluster import signals
from selsync_jax.commands import config_file
from selsync_jax.commands import flags


def command_line(command: str, folder: str = '') -> flags.CommandLine:
  """Returns the flags of a command that writes a run; see `load`."""
  line = flags.CommandLine(command, config=config_file.DEFAULT)
  about = (
    'Folder of the run. A run in it resumes where it stopped. '
    f'Default: runs/{folder}CONFIG-METHOD.'
  )
  line.flag('workdir', about, flags.folder)
  line.switch('restart', 'Move a run in the workdir aside, and start again.')
  about = 'Resume though the data or the code of the model have changed.'
  line.switch('accept_changes', about)
  about = 'At the end, write WORKDIR/report.html and its figures.'
  line.switch('report', about, default=True)
  return line


def load(options: argparse.Namespace, folder: str = '') -> None:
  """Adds the `settings` to the options, and a default for `workdir`.

  The default folder is named after `folder`, the config file and its variant.
  """
  options.settings = config_file.settings(options.file, options.fields)
  if options.workdir is None:
    stem, *variant = config_file.names(options.file)
    variant = variant or [options.settings.config.sync.method]
    options.workdir = pathlib.Path('runs', folder + '-'.join([stem, *variant]))


def handle_signals(workdir: pathlib.Path) -> None:
  """Makes a signal end the process, with one line about how to go on."""

  def stop(number):
    from selsync_jax.runs import records

    if (workdir / records.CONFIG).exists():
      reason = 'stopped by a signal; the same command resumes the run'
      signals.stop(signals.RESUMABLE, reason)
    name = signal.Signals(number).name
    signals.stop(signals.STOPPED, f'stopped by {name} before the run began')

  signals.Handler(stop).start()


def show(summary: Mapping[str, Any], options: argparse.Namespace) -> None:
  """Prints the summary of a run, and writes its page if `--report` is on."""
  from selsync_jax.report import facts

  facts.show(summary)
  if options.report:
    from selsync_jax.report import run_page  # Imports matplotlib.

    print(run_page.write([options.workdir], options.workdir))
