"""The settings of a run: a config whose fields were all checked.

Checks are cheap, so that mistakes are reported before any work. Checks that
need the data themselves are in `create_problem`.
"""

from collections.abc import Mapping, Sequence
import json
import math
import pathlib
from typing import Any, NamedTuple

from flax import traverse_util
import ml_collections

from selsync_jax import fields, methods, models, optimizers, own_code
from selsync_jax.config import (
  Bound,
  config_errors,
  ConfigError,
  flat,
  rule,
)
from selsync_jax.data import bind_data, BoundData
from selsync_jax.devices import layout
from selsync_jax.devices.mappers import Mapper
from selsync_jax.models import tasks
from selsync_jax.runs import records, source, writers

# Sections whose constructors have further fields.
_OPEN = (
  'data.',
  'model.',
  'optimizer.',
  'schedule.',
  'sync.',
  'virtual_cluster.',
)


class Settings(NamedTuple):
  """A config whose fields were all checked."""

  config: ml_collections.ConfigDict  # It must not be changed.
  data: BoundData
  model: Bound  # A function from the number of classes to the model.
  optimizer: Bound  # A function from `learning_rate` to the optimizer.
  schedule: Bound  # See `optimizers.with_warmup`; milestones are in epochs.
  # A function from a `Context` to the strategy; `None` for an asynchronous
  # method.
  method: methods.BoundStrategy | None
  source: source.Source | None  # For initial weights; `None` is the seed.
  # The digests of every task's source; the open data set names its task.
  task_code: Mapping[str, Sequence[str]]

  @property
  def learning_rate(self) -> float:
    """The peak learning rate."""
    return self.optimizer.arguments['learning_rate']

  @property
  def mapper(self) -> Mapper:
    """The mapper that the config names, for the devices of this process."""
    config = self.config
    return layout.choose(config.mapper, config.workers, **config.mesh)

  @property
  def fields(self) -> dict[str, Any]:
    """The fields of the config in JSON, by names such as `config.seed`."""
    return flat({'config': json.loads(self.config.to_json())})

  @property
  def code(self) -> dict[str, Any]:
    """The digests of all registered source, by its kind."""
    return self.code_of(*self.task_code)

  def code_of(self, *names: str) -> dict[str, Any]:
    """Returns the digests of registered source, with these tasks alone."""
    found = {
      'code.method': self.method.method.code if self.method else (),
      'code.data': self.data.dataset.code,
      'code.model': self.model.code,
      **{f'code.task.{n}': self.task_code[n] for n in names},
    }
    own = {kind: lines for kind, lines in found.items() if lines}
    return {'code.python': own_code.PYTHON, **own} if own else {}


Config = ml_collections.ConfigDict | Settings
"""A config, checked or unchecked."""


def check(config: Config) -> Settings:
  """Checks every field of a config, and binds the constructors that it names.

  The config started from configs/base.py; settings are returned as they are.
  """
  if isinstance(config, Settings):
    return config
  config = config.copy_and_resolve_references()
  plain = config.to_dict()
  _check_own(flat(plain))
  _check_together(config)
  del plain['schedule']['warmup_epochs']
  is_lockstep = config.sync.method in methods.METHODS
  return Settings(
    config=config,
    data=bind_data(plain['data']),
    model=models.bind_model(plain['model']),
    optimizer=optimizers.bind_optimizer(plain['optimizer']),
    schedule=optimizers.bind_schedule(plain['schedule']),
    method=methods.bind_strategy(plain['sync']) if is_lockstep else None,
    source=source.bind(config.init_from, config.init_rename),
    task_code={name: tasks.TASKS.code(name) for name in tasks.TASKS},
  )


def recorded(workdir: pathlib.Path) -> Settings:
  """Returns the settings of a run, with defaults for missing fields."""
  config = fields.completed(records.read_config(workdir) or {})
  nested = traverse_util.unflatten_dict(config, sep='.')
  return check(ml_collections.ConfigDict(nested))


def _check_own(given: Mapping[str, Any]) -> None:
  """Checks the fields that belong to no constructor, given by dotted name."""
  for name in (*fields.FIELDS, 'sync.method'):
    if name not in given:
      raise ConfigError(
        f'config.{name} is missing; start from get_config of configs/base.py'
      )
  for name, value in given.items():
    if name in fields.FIELDS:
      with config_errors(f'{name}={value!r}'):
        rule(fields.FIELDS[name].rule).check(value)
    elif not name.startswith(_OPEN):
      raise ConfigError(f'config.{name}={value!r}: there is no such field')
    try:
      json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
      raise ConfigError(
        f'config.{name}: must be a number, a text, a list or None, got a '
        f'{type(value).__name__}'
      ) from error


def _check_together(config: ml_collections.ConfigDict) -> None:
  """Checks rules on several fields, and the names in `log.to`."""
  if config.steps is None and config.epochs is None:
    raise ConfigError('config.steps=None, config.epochs=None: set one of them')
  check_mesh(config)
  warmup = config.schedule.warmup_epochs
  if config.steps is None and warmup >= config.epochs:
    raise ConfigError(
      f'config.schedule.warmup_epochs={warmup!r}: must be below '
      f'config.epochs={config.epochs!r}'
    )
  with config_errors('log.to'):
    writers.check(config.log.to)


def check_mesh(config: Any) -> None:
  """Checks the rules on a worker's devices, without using devices."""
  for axis, devices in config.mesh.items():
    if devices > 1 and config.mapper != 'mesh':
      raise ConfigError(
        f'config.mesh.{axis}={devices}: mapper {config.mapper} has one device '
        'per worker; --config.mapper=mesh can have more'
      )
  devices = math.prod(config.mesh.values())
  if config.workers == 1 < devices:
    raise ConfigError(
      f'config.workers=1: must be at least 2 with {devices} devices each; XLA '
      'cannot compile a mesh with one worker'
    )
  if config.batch_size % (devices * config.accumulate):
    raise ConfigError(
      f'config.batch_size={config.batch_size}: must be a multiple of '
      f'config.accumulate={config.accumulate} times the devices per worker, '
      f'{devices} (mesh.data times mesh.fsdp)'
    )
