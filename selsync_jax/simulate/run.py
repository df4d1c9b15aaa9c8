"""A simulated run from config to summary."""

import pathlib
from typing import Any

import ml_collections

from selsync_jax.config import ConfigError
from selsync_jax.runs.checkpoints import peek_record
from selsync_jax.simulate import methods
from selsync_jax.simulate.asynchronous import Asynchronous
from selsync_jax.simulate.lockstep import Lockstep
from selsync_jax.training.train import train_and_evaluate


def simulate(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  *,
  restart: bool = False,
) -> dict[str, Any]:
  """Trains on the virtual cluster of a config, and writes the run.

  Args:
    config: see configs/base.py; of any method, lockstep or asynchronous.
    workdir: as for `train_and_evaluate`, whose errors it raises.
    restart: whether to move a run in `workdir` aside first.

  Returns:
    The summary, as in `summary.json`.
  """
  config = config.copy_and_resolve_references()
  config.update(mapper='vmap', mesh={'data': 1, 'fsdp': 1})  # Time is virtual.
  is_asynchronous = config.sync.method in methods.METHODS
  if is_asynchronous and not restart:
    _refuse_resize(config, workdir)
  return train_and_evaluate(
    config,
    workdir,
    restart=restart,
    create_course=Asynchronous if is_asynchronous else Lockstep,
  )


def _refuse_resize(
  config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> None:
  record = peek_record(workdir)
  if record and record['workers'] != config.workers:
    raise ConfigError(
      f'config.workers={config.workers}: must be {record["workers"]}, as in '
      f'{workdir}; {config.sync.method} cannot resume with others'
    )
