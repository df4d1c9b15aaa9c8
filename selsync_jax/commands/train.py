"""Train a model with N workers."""

import argparse
from collections.abc import Mapping, Sequence
import contextlib
import functools
import math
import os
import pathlib
import signal
import sys
from typing import Annotated, Any, TYPE_CHECKING

from annotated_types import Ge

from selsync_jax.cluster import connection, signals
from selsync_jax.commands import config_file, flags, silence_orbax
from selsync_jax.config import ConfigError, Count, Index

if TYPE_CHECKING:
  from selsync_jax.islands.participants import IslandParticipants
  from selsync_jax.runs.history import Run


def command_line(command: str, folder: str = '') -> flags.CommandLine:
  """Returns the flags of a command that writes a run; see `load`."""
  line = flags.CommandLine(command, config=config_file.DEFAULT)
  line.set_defaults(folder=folder)
  about = (
    'Folder of the run. A run in it resumes where it stopped. '
    f'Default: runs/{folder}CONFIG-METHOD.'
  )
  line.flag('workdir', about, flags.folder)
  line.switch('restart', 'Move a run in the workdir aside, and start again.')
  about = 'Resume even if the data or the model have changed.'
  line.switch('accept_changes', about)
  about = 'At the end, write WORKDIR/report.html and its figures.'
  line.switch('report', about, default=True)
  return line


def load(options: argparse.Namespace) -> None:
  """Adds the `settings` to the options, and a default for `workdir`.

  The default folder is named after the config file and its variant.
  """
  options.settings = config_file.settings(options.file, options.fields)
  if options.workdir is None:
    stem, *variant = config_file.names(options.file)
    variant = variant or [options.settings.config.sync.method]
    name = options.folder + '-'.join([stem, *variant])
    options.workdir = pathlib.Path('runs', name)


def handle_signals(options: argparse.Namespace) -> None:
  """Makes a signal end the process, with one line about how to resume."""
  old = None
  if options.restart:  # The old run is moved aside some seconds later.
    old = _inode(options.workdir)
    signals.resume_without('--restart')

  def stop(number):
    from selsync_jax.runs import records

    is_there = (options.workdir / records.CONFIG).exists()
    if is_there and _inode(options.workdir) != old:
      reason = f'stopped by a signal; {signals.resumes()}'
      signals.stop(signals.RESUMABLE, reason)
    name = signal.Signals(number).name
    signals.stop(signals.STOPPED, f'stopped by {name} before the run began')

  signals.Handler(stop).start()


def _inode(folder: pathlib.Path) -> int | None:
  """Returns a number that differs for another folder of the same name."""
  try:
    return folder.stat().st_ino
  except FileNotFoundError:
    return None


def show(
  summary: Mapping[str, Any], workdir: pathlib.Path, report: bool = True
) -> None:
  """Prints the summary of a run, and writes its page if `report` is set."""
  from selsync_jax.report import facts

  facts.show(summary)
  if report:
    from selsync_jax.report import run_page  # Imports matplotlib.

    print(run_page.write([workdir], workdir))


def train(
  config: str,
  workdir: str | pathlib.Path,
  *,
  fields: Mapping[str, Any] | None = None,
  restart: bool = False,
) -> 'Run':
  """Trains a run in this process, like the command `train`.

  It prints the progress, and writes the run's page. If JAX has not been used
  yet, a CPU gets the virtual devices that the workers need. Otherwise the
  workers share the devices that exist, if the field `mapper` is `'auto'`.

  Args:
    config: a config file, or the name of a built-in one, as in `--config`.
    workdir: the folder of the run. A run in it is resumed, and a finished one
      is left as it is.
    fields: values of the config's fields by their dotted names, for example
      `{'sync.delta': 0.5}`.
    restart: whether to move a run in the folder aside first.

  Returns:
    The run, as `history.read` returns it.

  Raises:
    ConfigError: before any work, for a value that breaks its rule, or if this
      process has joined others.
    Stopped: after SIGTERM or SIGINT, with everything saved.
    RunError: if the run fails; names the last good checkpoint.

  Example:
    >>> import selsync_jax as ss
    >>> run = ss.train(
    ...   'digits', 'runs/first', fields={'epochs': 5}
    ... )  # doctest: +SKIP
    >>> run.changes.shape  # Steps, workers.  # doctest: +SKIP
    (50, 4)
  """
  settings = config_file.settings(config, config_file.arguments(fields))
  config_file.refuse_simulation(settings.config)
  from selsync_jax.cluster import processes

  if (count := processes.count()) > 1:
    raise ConfigError(
      f'train: runs in a single process, and this is one of {count}; run the '
      'command `selsync train` in each process instead of calling join'
    )
  from selsync_jax.devices import backend

  options = settings.config
  if processes.jax_is_used():
    backend.check(options.device)
    settings.mapper.check()
  else:
    backend.start(
      options.device,
      workers=options.workers,
      mapper=options.mapper,
      **options.mesh,
    )
  from selsync_jax.runs import history
  from selsync_jax.training.train import train_and_evaluate

  workdir = pathlib.Path(workdir).expanduser()
  show(train_and_evaluate(settings, workdir, restart=restart), workdir)
  return history.read(workdir)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
  """Parses the command line into the flags by name, and the `settings`."""
  line = command_line('train')
  line.switch('profile', 'Trace a few steps into WORKDIR/profile.')
  line.flag('coordinator', 'HOST:PORT of process 0, if there are several.')
  line.flag('num_processes', 'Number of processes.', flags.of(Count))
  line.flag('process_id', 'Index of this process.', flags.of(Index))
  about = (
    'Seconds to wait for the other processes, and until a silent one counts as '
    'lost.'
  )
  line.flag(
    'cluster_timeout',
    about,
    flags.of(Annotated[float, Ge(connection.LEAST)]),
    '60',
  )
  about = 'Secret of the processes, or SELSYNC_CLUSTER_TOKEN.'
  line.flag('cluster_token', about)
  about = 'Name of the island to train, or SELSYNC_ISLAND.'
  line.flag('island', about, flags.name)
  about = 'Invitation of `selsync meet`, or SELSYNC_INVITATION.'
  line.flag('join', about)
  about = "Port of the island's first process."
  line.flag('island_port', about, flags.port)
  about = 'Exchange messages only through the coordinator.'
  line.switch('relay', about)
  about = 'Record everything that the island sends in this file.'
  line.flag('audit', about, pathlib.Path)
  about = 'Begin the next step while a vote of islands travels.'
  line.switch('speculate', about, default=True)
  line.set_defaults(
    island=os.environ.get('SELSYNC_ISLAND'),
    join=os.environ.get('SELSYNC_INVITATION'),
  )
  options = line.parse(arguments)
  load(options)
  config_file.refuse_simulation(options.settings.config)
  from selsync_jax.cluster import processes

  options.spec = processes.process_spec(
    options.coordinator, options.num_processes, options.process_id
  )
  for flag in ('island_port', 'audit'):
    value = getattr(options, flag)
    if value and not options.island:
      raise ConfigError(f'--{flag}={value}: only valid with --island')
  if options.relay and not options.island:
    raise ConfigError('--relay: only valid with --island')
  if not (options.speculate or options.island):
    raise ConfigError('--nospeculate: only valid with --island')
  if options.island:
    _check_island(options)
    options.workdir /= options.island  # All islands share one folder.
  return options


def _check_island(options: argparse.Namespace) -> None:
  """Raises `ConfigError` for flags that an island cannot follow."""
  if not options.join:
    raise ConfigError(
      f'--island={options.island}: --join=INVITATION is missing'
    )
  config, count = options.settings.config, options.spec.processes
  mapper, keep = config.mapper, config.checkpoint.keep
  if keep < 2:  # Islands may be one checkpoint apart.
    raise ConfigError(
      f'config.checkpoint.keep={keep}: must be at least 2 for islands'
    )
  if mapper in ('vmap', 'map'):
    raise ConfigError(
      f'--island={options.island}: an island is one worker; '
      f'config.mapper={mapper} must be auto, pmap or mesh'
    )
  if count and (devices := math.prod(config.mesh.values())) % count:
    raise ConfigError(
      f'config.mesh: an island of {count} processes needs a multiple of that '
      f'many devices, got {devices} (mesh.data times mesh.fsdp)'
    )


def main(arguments: Sequence[str]) -> None:
  """Joins the other processes or islands, trains, and prints the summary."""
  from selsync_jax.runs import provenance

  sys.argv = provenance.without_secrets(sys.argv)  # W&B records them.
  options = parse(arguments)
  handle_signals(options)
  silence_orbax()
  from selsync_jax.cluster import processes

  with contextlib.ExitStack() as stack:
    participants = _start(options, stack)
    # Importing TensorFlow is slow; mistakes in the config were reported above.
    from selsync_jax.training import train

    summary = train.train_and_evaluate(
      options.settings,
      options.workdir,
      restart=options.restart,
      accept_changes=options.accept_changes,
      profile=options.profile,
      patience=options.cluster_timeout,
      participants=participants,
    )
    is_first = processes.is_first()
  if is_first:
    show(summary, options.workdir, options.report)


def _start(
  options: argparse.Namespace, stack: contextlib.ExitStack
) -> 'IslandParticipants | None':
  """Starts JAX, with the other processes, or joins the other islands.

  The stack ends the connections. Returns the islands if this process is one.
  """
  from selsync_jax.cluster import processes
  from selsync_jax.devices import backend
  from selsync_jax.runs import provenance

  config, island = options.settings.config, options.island
  agreed = provenance.versions() | options.settings.fields
  join = functools.partial(
    processes.join,
    *options.spec,
    agreed=agreed | {'island': island},
    timeout=options.cluster_timeout,
    token=options.cluster_token,
  )
  if island and not options.spec.coordinator:
    join = processes.Cluster  # Tasks of Slurm may be islands.
  cluster = backend.start(
    config.device,
    join,
    workers=1 if island else config.workers,
    mapper=config.mapper,
    **config.mesh,
  )
  stack.enter_context(cluster)
  if not island:
    return None
  # These import Arrow.
  from selsync_jax.islands import joining
  from selsync_jax.islands.participants import joined

  join = functools.partial(
    joining.join,
    joining.Invitation.parse(options.join),
    timeout=options.cluster_timeout,
    port=options.island_port or 0,
    relay=options.relay,
    audit=options.audit,
  )
  return stack.enter_context(
    joined(
      island,
      options.settings,
      options.workdir,
      agreed,
      join,
      options.restart,
      options.speculate,
    )
  )
