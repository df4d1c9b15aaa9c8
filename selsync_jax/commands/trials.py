"""The runs of a comparison: methods by settings, learning rates and seeds.

All methods get the same learning rates, number of epochs, seeds, and values of
a sweep. The same seed means the same initial weights, batches and random draws.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import itertools
import pathlib
import re
import types
from typing import Any, TYPE_CHECKING

import ml_collections

from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from selsync_jax.fields import completed
from selsync_jax.runs import files, records
from selsync_jax.runs.history import Trial

if TYPE_CHECKING:
  from selsync_jax.training.settings import Settings


def list_trials(
  file: str,
  fields: Sequence[str],
  methods: Iterable[str],
  out: pathlib.Path,
  *,
  sweeps: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
  learning_rates: Sequence[Callable[[float], float]] = (),
  seeds: int = 1,
  simulate: bool = False,
) -> list[Trial]:
  """Returns every run of a comparison, ordered by seed.

  A method is `NAME`, or `NAME+FIELD=VALUE+...` with fields of its own. A sweep
  lists the values of a field, written as in a flag, for all methods with this
  field. A learning rate is a function of the learning rate in the method's
  config (`flags.rates`). The config has the first seed, and the learning rate
  if none is given.

  Raises:
    ConfigError: if no method has a field of a sweep.
  """
  fields = [*(config_file.SIMULATED if simulate else ()), *fields]
  trials, unknown = [], dict(sweeps)
  for index, spec in itertools.product(range(seeds), methods):
    method, *own = spec.split('+')
    name = config_file.with_method(file, method)
    common = [*fields, *(f'--config.{field}' for field in own)]
    config = config_file.load(name, common)
    swept = [field for field in sweeps if has(config, field)]
    unknown = {k: values for k, values in unknown.items() if k not in swept}
    combined = itertools.product(*(sweeps[field] for field in swept))
    for values, rate in itertools.product(combined, learning_rates or [None]):
      chosen = [f'{k}={v}' for k, v in zip(swept, values, strict=True)]
      varied = {'seed': config.seed + index}
      if rate:
        own_rate = config.optimizer.learning_rate
        varied['optimizer.learning_rate'] = rate(own_rate)
      flags = [f'--config.{field}' for field in chosen]
      flags += [f'--config.{field}={value}' for field, value in varied.items()]
      trial = _trial(name, [*own, *chosen], [*common, *flags], out, simulate)
      trials.append(trial._replace(spec=spec))
  for field, values in unknown.items():
    raise ConfigError(
      f'--sweep={field}={",".join(values)}: no method has this field'
    )
  _check_distinct(trials)
  return trials


def has(config: Any, field: str) -> bool:
  """Whether a config has a field of this dotted name, perhaps in a part."""
  for name in field.split('.'):
    if not isinstance(config, ml_collections.ConfigDict):
      return False
    if not config:  # A part that is not replaced.
      return True
    if name not in config:
      return False
    config = config[name]
  return True


def _check_distinct(trials: Sequence[Trial]) -> None:
  """Raises `ConfigError` if two trials would write in one folder."""
  found: dict[pathlib.Path, Trial] = {}
  for trial in trials:
    other = found.setdefault(trial.workdir, trial)
    if other is not trial:
      raise ConfigError(
        f'{trial.label}: two runs would write {trial.workdir}: '
        f'{" ".join(other.flags)} and {" ".join(trial.flags)}'
      )


def _trial(
  file: str,
  own: Sequence[str],
  flags: list[str],
  out: pathlib.Path,
  simulate: bool,
) -> Trial:
  settings = config_file.settings(file, flags)
  config = settings.config
  label, rate = _label(config.sync, own), config.optimizer.learning_rate
  folder = f'{label}, lr {_number(rate)}'.replace(', ', '-')
  folder = re.sub(r'[^\w.=+-]', '', folder.replace('/', '_'))
  trial = Trial(
    label=label,
    learning_rate=rate,
    seed=config.seed,
    workdir=out / folder / f'seed{config.seed}',
    flags=[f'--config={file}', *flags],
    config=config,
    command='simulate' if simulate else 'train',
    code=settings.code,
  )
  _check_workdir(trial)
  try:
    check(settings, simulate)
  except ConfigError as error:
    raise ConfigError(f'{label}: {error}') from error
  return trial


def check(settings: 'Settings', simulate: bool) -> None:
  """Raises `ConfigError` if the method cannot run with these settings."""
  if simulate:
    from selsync_jax.simulate import run

    run.refuse(settings)
  else:
    from selsync_jax.training import setup

    config_file.refuse_simulation(settings.config)
    setup.draft(settings)


# In a label only with another value than the default.
_UNLABELED = ('vote_delay', 'vote_every', 'smoothing')


def _label(sync: ml_collections.ConfigDict, own: Sequence[str]) -> str:
  """Returns a method with its numbers and own fields: `selsync, delta 0.1`."""
  from selsync_jax import methods  # Imports JAX.

  lockstep = sync.method in methods.METHODS
  defaults = methods.fields(sync.method) if lockstep else {}
  numbers = {
    name: _number(value)
    for name, value in sync.items()
    if isinstance(value, int | float)
    and not (name in _UNLABELED and value == defaults.get(name))
  }
  pairs = (field.partition('=') for field in own)
  given = {name.removesuffix('.name'): value for name, _, value in pairs}
  for path, value in given.items():
    *section, short = path.split('.')
    if section == ['sync'] and short in sync:
      numbers.setdefault(short, value)
    else:
      keys = short, path, f'config.{path}'
      numbers[next(key for key in keys if key not in numbers)] = value
  return ', '.join([sync.method, *map(' '.join, numbers.items())])


def _number(value: float) -> str:
  """Returns the shortest text that tells this number from others."""
  short = f'{value:g}'
  return short if float(short) == value else str(value)


def _check_workdir(trial: Trial) -> None:
  """Raises `ConfigError` if the workdir holds a run with another config."""
  try:
    saved = records.read_config(trial.workdir)
  except files.DamagedFile:
    return  # The run repairs it.
  if saved is None:
    return
  config = trial.config.to_dict()
  for field, old, new in files.differences(completed(saved), config):
    raise ConfigError(
      f'{trial.workdir}: holds a run with {field}={old!r}, not {new!r}; '
      'choose another --out'
    )
