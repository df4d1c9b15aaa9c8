"""The runs of a comparison: methods by settings, learning rates and seeds.

All methods get the same learning rates, number of epochs and seeds, so also the
same initial weights, batches and random draws.
"""

from collections.abc import Callable, Iterable, Sequence
import itertools
import pathlib
import re

import ml_collections

from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from selsync_jax.fields import completed
from selsync_jax.runs import files
from selsync_jax.runs import records
from selsync_jax.runs.history import Trial


def list_trials(
  file: str,
  fields: Sequence[str],
  methods: Iterable[str],
  deltas: Sequence[float],
  learning_rates: Sequence[Callable[[float], float]],
  seeds: int,
  out: pathlib.Path,
  simulate: bool = False,
) -> list[Trial]:
  """Returns every run of a comparison, ordered by seed.

  A method is `NAME`, or `NAME+FIELD=VALUE+...` with fields only for it. Deltas
  are for the methods that have one. A learning rate is a function of that in
  the method's config (`flags.rates`). Without deltas or learning rates, the
  config has them; it also has the first of the seeds.
  """
  fields = [*(config_file.SIMULATED if simulate else ()), *fields]
  trials = []
  for index, spec in itertools.product(range(seeds), methods):
    method, *own = spec.split('+')
    name = config_file.with_method(file, method)
    common = [*fields, *(f'--config.{field}' for field in own)]
    config = config_file.load(name, common)
    own_deltas = ('delta' in config.sync and deltas) or [None]
    for delta, rate in itertools.product(own_deltas, learning_rates or [None]):
      varied = {
        'seed': config.seed + index,
        'sync.delta': delta,
        'optimizer.learning_rate': rate
        and rate(config.optimizer.learning_rate),
      }
      flags = [f'--config.{k}={v}' for k, v in varied.items() if v is not None]
      trials.append(_trial(name, own, [*common, *flags], out, simulate))
  _check_distinct(trials)
  return trials


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
  config = config_file.load(file, flags)
  if not simulate:
    config_file.refuse_simulation(config)
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
  )
  _check_workdir(trial)
  return trial


_UNLABELED = ('lag', 'vote_every', 'smoothing')  # If they have their defaults.


def _label(sync: ml_collections.ConfigDict, own: Sequence[str]) -> str:
  """Returns a method, its numbers and own fields, as `selsync, delta 0.1`."""
  from selsync_jax import methods  # Imports JAX.

  lockstep = sync.method in methods.METHODS
  defaults = methods.fields(sync.method) if lockstep else {}
  numbers = {
    name: _number(value)
    for name, value in sync.items()
    if isinstance(value, int | float)
    and not (name in _UNLABELED and value == defaults.get(name))
  }
  for field in own:
    name, _, value = field.partition('=')
    path = name.removesuffix('.name')
    short = path.rpartition('.')[2]
    if path.removeprefix('sync.') in sync:
      numbers.setdefault(short, value)
    else:
      numbers[path if short in numbers else short] = value
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
      f'{trial.workdir}: holds a run with {field}={old!r}, not {new!r}; take '
      'another --out'
    )
