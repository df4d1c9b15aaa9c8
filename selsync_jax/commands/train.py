"""Train a model with N workers."""

import argparse
from collections.abc import Sequence
import functools
import json

from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.commands import run_line
from selsync_jax.commands import silence_orbax
from selsync_jax.config import flat


def parse(arguments: Sequence[str]) -> argparse.Namespace:
  """Parses the command line into the flags by name, and the `settings`."""
  line = run_line.command_line('train')
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
  run_line.load(options)
  config_file.refuse_simulation(options.settings.config)
  return options


def main(arguments: Sequence[str]) -> None:
  """Joins the other processes, trains, and prints the summary."""
  options = parse(arguments)
  config = options.settings.config
  run_line.handle_signals(options.workdir)
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
    run_line.show(summary, options)
