"""Train a model with N workers."""

import argparse
from collections.abc import Mapping, Sequence
import functools
import json
import pathlib
import signal
from typing import Any

from selsync_jax.cluster import signals
from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.commands import silence_orbax
from selsync_jax.config import flat


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


def parse(arguments: Sequence[str]) -> argparse.Namespace:
  """Parses the command line into the flags by name, and the `settings`."""
  line = command_line('train')
  line.switch('profile', 'Trace a few steps into WORKDIR/profile.')
  line.flag('coordinator', 'HOST:PORT of process 0, if there are several.')
  line.flag('num_processes', 'Number of processes.', flags.whole(1))
  line.flag('process_id', 'Index of this process.', flags.whole(0))
  about = (
    'Seconds to wait for the other processes, and until one that is silent '
    'counts as lost.'
  )
  line.flag('cluster_timeout', about, flags.positive, '60')
  about = 'A secret of these processes. Default: SELSYNC_CLUSTER_TOKEN.'
  line.flag('cluster_token', about)
  options = line.parse(arguments)
  load(options)
  config_file.refuse_simulation(options.settings.config)
  return options


def main(arguments: Sequence[str]) -> None:
  """Joins the other processes, trains, and prints the summary."""
  options = parse(arguments)
  config = options.settings.config
  handle_signals(options.workdir)
  silence_orbax()
  from selsync_jax.cluster import processes
  from selsync_jax.devices import backend
  from selsync_jax.runs import provenance

  spec = processes.process_spec(
    options.coordinator, options.num_processes, options.process_id
  )
  fields = flat({'config': json.loads(config.to_json())})
  agreed = provenance.versions() | fields
  timeout = options.cluster_timeout
  join = functools.partial(
    processes.join, spec, agreed, timeout, options.cluster_token
  )
  with backend.start(
    config.device,
    join,
    workers=config.workers,
    mapper=config.mapper,
    **config.mesh,
  ) as cluster:
    # Importing TensorFlow is slow; mistakes in the config were reported above.
    from selsync_jax.training import train

    summary = train.train_and_evaluate(
      options.settings,
      options.workdir,
      restart=options.restart,
      accept_changes=options.accept_changes,
      profile=options.profile,
      patience=timeout,
    )
  if cluster.process == 0:
    show(summary, options)
