"""Train a model with N workers."""

import argparse
from collections.abc import Sequence
import json

from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.commands import run_line
from selsync_jax.commands import silence_orbax


def parse(arguments: Sequence[str]) -> argparse.Namespace:
  """Reads the command line: the flags by name, and the `config`.

  Raises:
    ConfigError: for a mistake in flags or config.
  """
  line = run_line.command_line('train')
  line.switch('profile', False, 'Trace a few steps into WORKDIR/profile.')
  line.flag(
    'coordinator', str, None, 'HOST:PORT of process 0, if there are several.'
  )
  line.flag('num_processes', flags.whole(1), None, 'Number of processes.')
  line.flag('process_id', flags.whole(0), None, 'Index of this process.')
  line.flag(
    'cluster_timeout',
    flags.positive,
    '60',
    'Seconds to wait for the other processes, and until one that is silent '
    'counts as lost.',
  )
  line.flag(
    'cluster_token',
    str,
    None,
    'A secret of these processes. Default: SELSYNC_CLUSTER_TOKEN.',
  )
  options = line.parse(arguments)
  run_line.load(options)
  config_file.refuse_simulation(options.config)
  return options


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
  silence_orbax()
  from selsync_jax.devices import backend
  from selsync_jax.devices import layout
  from selsync_jax.devices import processes
  from selsync_jax.runs import provenance
  from selsync_jax.runs import workdir as workdirs

  backend.check_flags()
  spec = processes.process_spec(
    options.coordinator, options.num_processes, options.process_id
  )
  fields = workdirs.flat(json.loads(config.to_json()))
  agreed = provenance.versions() | {
    f'config.{k}': value for k, value in fields.items()
  }
  summary = interruption = None
  with processes.join(
    spec, agreed, options.cluster_timeout, options.cluster_token
  ) as cluster:
    if config.mapper not in layout.ONE_DEVICE:
      layout.make_devices(config.workers, cluster.processes, **config.mesh)
    backend.start(config.device)
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
