"""The rules of all fields of a config, before anything heavy is imported.

Each folder has the rules of its own fields; here they are put together, with
those on fields of several folders. What depends on the data themselves is
checked when they are open, by `create_setup`.
"""

from collections.abc import Mapping
import json
import math
from typing import Any

from selsync_jax import config as rules
from selsync_jax import models
from selsync_jax import optimizers
from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError
from selsync_jax.config import lookup
from selsync_jax.data import fields as data
from selsync_jax.data.opening import check_directory
from selsync_jax.data.partitions import PARTITIONS
from selsync_jax.runs import writers
from selsync_jax.runs.workdir import flat

# By section of the config: the rules of its fields.
_RULES = {
  '': rules.RULES,
  'data.': data.RULES,
  'model.': models.RULES,
  'optimizer.': optimizers.RULES,
  'schedule.': optimizers.SCHEDULE_RULES,
}
# Their constructors know these fields: a data set, a workload, a method or a
# kind of cluster has its own.
_OPEN = ('data.', 'model.', 'optimizer.', 'sync.', 'cluster.')
_NEEDED = (
  *(
    prefix + field
    for prefix, table in _RULES.items()
    for field in table
    if prefix not in _OPEN or prefix == 'data.'
  ),
  'sync.method',
  'model.name',
  'model.dtype',
  'optimizer.name',
  'optimizer.learning_rate',
  'optimizer.decayed',
)


def check_config(config: Any) -> None:
  """Raises `ConfigError` for the first field that breaks its rule.

  Args:
    config: a `ConfigDict` that started from `configs/base.py`.
  """
  fields = flat(config.to_dict())
  _check_names(fields)
  for prefix, table in _RULES.items():
    section = {
      name.removeprefix(prefix): value
      for name, value in fields.items()
      if name.startswith(prefix)
    }
    rules.check_fields(section, table, prefix)
  for name, value in fields.items():
    _check_json(name, value)
  _check_together(config)


def _check_names(fields: Mapping[str, Any]) -> None:
  """Raises `ConfigError` for a field that is missing, or that nobody knows."""
  for name in _NEEDED:
    if name not in fields:
      raise ConfigError(
        f'config.{name} is missing; start from get_config of configs/base.py'
      )
  for name, value in fields.items():
    if name not in _NEEDED and not name.startswith(_OPEN):
      raise ConfigError(f'config.{name}={value!r}: there is no such field')


def _check_json(name: str, value: Any) -> None:
  try:
    json.dumps(value)
  except (TypeError, ValueError, RecursionError) as error:
    raise ConfigError(
      f'config.{name}: must be a number, a text, a list or None, got a '
      f'{type(value).__name__}'
    ) from error


def _check_mesh(config: Any) -> None:
  """The rules on the devices inside a worker that need no devices."""
  for axis, devices in config.mesh.items():
    if devices > 1 and config.mapper != 'mesh':
      raise ConfigError(
        f'config.mesh.{axis}={devices}: mapper {config.mapper} has one device '
        'per worker; --config.mapper=mesh can have more'
      )
  devices = math.prod(config.mesh.values())
  if config.workers == 1 < devices:
    raise ConfigError(
      f'config.workers=1: a worker of {devices} devices needs others; XLA '
      'cannot compile a mesh with one worker'
    )
  if config.batch_size % devices:
    raise ConfigError(
      f'config.batch_size={config.batch_size}: must be a multiple of the '
      f'devices per worker, {devices} (mesh.data times mesh.fsdp)'
    )


def _check_together(config: Any) -> None:
  """Rules on several fields."""
  if config.steps is None and config.epochs is None:
    raise ConfigError('config.steps=None, config.epochs=None: set one of them')
  _check_mesh(config)
  warmup = config.schedule.warmup_epochs
  if config.steps is None and warmup >= config.epochs:
    raise ConfigError(
      f'config.schedule.warmup_epochs={warmup!r}: must be below '
      f'config.epochs={config.epochs!r}'
    )
  with config_errors('log.to'):
    writers.check(config.log.to)
  with config_errors('data'):
    data.check_source(config.data.to_dict())
  check_directory(config.data.dir)
  with config_errors('data.partition'):
    lookup(PARTITIONS, config.data.partition)
  with config_errors('model'):
    models.create_model(num_outputs=2, **config.model)
  with config_errors('optimizer'):
    optimizers.check_optimizer(**config.optimizer)
  with config_errors('schedule'):
    optimizers.check_schedule(
      **{k: v for k, v in config.schedule.items() if k != 'warmup_epochs'}
    )
