"""Train a model with N workers."""

from collections.abc import Sequence
import functools
import json
import pathlib
from typing import NamedTuple

from absl import logging
import ml_collections

from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.commands import run_line
from selsync_jax.config import flat
from selsync_jax.runs import provenance


class Options(NamedTuple):
  """The command line, read and checked.

  Attributes:
    config: of the run.
    workdir: the folder of the run.
    restart: whether to move a run in `workdir` aside.
    report: whether to write the page of the run at its end.
    profile: whether to trace a few steps into `workdir/profile`.
    coordinator: `HOST:PORT` of process 0, or `None`.
    num_processes: of the run, or `None`.
    process_id: the index of this process, or `None`.
    cluster_timeout: in seconds.
    cluster_token: what the processes share, or `None`.
  """

  config: ml_collections.ConfigDict
  workdir: pathlib.Path
  restart: bool
  report: bool
  profile: bool
  coordinator: str | None
  num_processes: int | None
  process_id: int | None
  cluster_timeout: float
  cluster_token: str | None


def parse(arguments: Sequence[str]) -> Options:
  """Reads the command line.

  Raises:
    ConfigError: for a mistake in flags or config.
  """
  line = run_line.RunCommandLine('train')
  profile = line.switch(
    'profile', False, 'Trace a few steps into WORKDIR/profile.'
  )
  coordinator = line.flag(
    'coordinator', str, None, 'HOST:PORT of process 0, if there are several.'
  )
  processes = line.flag(
    'num_processes', flags.whole(1), None, 'Number of processes.'
  )
  process = line.flag(
    'process_id', flags.whole(0), None, 'Index of this process.'
  )
  timeout = line.flag(
    'cluster_timeout',
    flags.positive,
    '60',
    'Seconds to wait for the other processes, and until one that is silent '
    'counts as lost.',
  )
  token = line.flag(
    'cluster_token',
    str,
    None,
    'A secret of these processes. Default: SELSYNC_CLUSTER_TOKEN.',
  )
  line.parse(arguments)
  config = line.load()
  config_file.refuse_simulation(config)
  return Options(
    config=config,
    workdir=line.folder(config),
    restart=line.restart.value,
    report=line.report.value,
    profile=profile.value,
    coordinator=coordinator.value,
    num_processes=processes.value,
    process_id=process.value,
    cluster_timeout=timeout.value,
    cluster_token=token.value,
  )


def main(arguments: Sequence[str]) -> None:
  """Joins the other processes, trains, and prints the summary.

  Raises:
    ConfigError: for a mistake in flags or config.
    Interrupted: after SIGTERM or SIGINT.
    RunError: if the run failed.
  """
  options = parse(arguments)
  config = options.config
  run_line.handle_signals(options.workdir)
  logging.set_verbosity(logging.FATAL)  # Orbax also logs what it raises.
  from selsync_jax.cluster import processes
  from selsync_jax.devices import backend

  spec = processes.process_spec(
    options.coordinator, options.num_processes, options.process_id
  )
  fields = flat(json.loads(config.to_json()))
  agreed = provenance.versions() | {
    f'config.{k}': value for k, value in fields.items()
  }
  join = functools.partial(
    processes.join,
    spec,
    agreed,
    options.cluster_timeout,
    options.cluster_token,
  )
  summary = interruption = None
  with backend.start(
    config.device,
    join,
    workers=config.workers,
    mapper=config.mapper,
    **config.mesh,
  ) as cluster:
    # These import TensorFlow, and a mistake in the config should end sooner.
    from selsync_jax.runs import checkpoints
    from selsync_jax.training import milestones
    from selsync_jax.training import train

    checkpoints.silence_tensorstore()
    try:
      summary = train.train_and_evaluate(
        config,
        options.workdir,
        restart=options.restart,
        profile=options.profile,
        patience=options.cluster_timeout,
      )
    except milestones.Stopped as error:
      interruption = error
  if interruption:
    raise run_line.Interrupted(interruption)
  if summary and cluster.process == 0:
    run_line.show(summary, options.workdir, options.report)
