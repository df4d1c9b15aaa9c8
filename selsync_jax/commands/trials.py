"""The runs of a comparison: methods by settings, learning rates and seeds.

All methods get the same learning rates, number of epochs and seeds, so also the
same initial weights, batches and random draws.
"""

from collections.abc import Iterable, Sequence
import json
import pathlib
import re
from typing import TYPE_CHECKING

from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from selsync_jax.config import flat
from selsync_jax.runs import files
from selsync_jax.runs import records
from selsync_jax.runs.trial import Trial

if TYPE_CHECKING:
  import ml_collections


def list_trials(
  file: str,
  fields: Sequence[str],
  methods: Iterable[str],
  deltas: Sequence[float],
  learning_rates: Sequence[float],
  seeds: int,
  out: pathlib.Path,
  simulate: bool = False,
) -> list[Trial]:
  """Returns every run of a comparison, ordered by seed.

  Args:
    file: the config file, `FILE` or `FILE:VARIANT`.
    fields: flags for all runs, each `--config.FIELD=VALUE`.
    methods: the methods, each `NAME` or `NAME+FIELD=VALUE+...` with fields only
      for it.
    deltas: the deltas of the methods that have one; if empty, the config's.
    learning_rates: the learning rates of all methods; if empty, the config's.
    seeds: the number of seeds; the first one is the config's.
    out: the folder of the comparison.
    simulate: whether to simulate the runs on the config's virtual cluster.

  Raises:
    ConfigError: if there is a mistake in a config, or a workdir holds a run
      with another config.
  """
  fields = [*(config_file.SIMULATED if simulate else ()), *fields]
  trials = []
  for index in range(seeds):
    for spec in methods:
      method, *own = spec.split('+')
      name = config_file.with_method(file, method)
      common = [*fields, *(f'--config.{field}' for field in own)]
      config = config_file.load(name, common)
      for delta in ('delta' in config.sync and deltas) or [None]:
        for rate in learning_rates or [None]:
          varied = {
            'seed': config.seed + index,
            'sync.delta': delta,
            'optimizer.learning_rate': rate,
          }
          flags = [
            f'--config.{field}={value}'
            for field, value in varied.items()
            if value is not None
          ]
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


def _label(sync: 'ml_collections.ConfigDict', own: Sequence[str]) -> str:
  """Returns a method, its numbers and own fields, as `selsync, delta 0.1`."""
  from selsync_jax import methods  # Imports JAX.

  defaults = (
    methods.fields(sync.method) if sync.method in methods.METHODS else {}
  )
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
    existing = records.read_config(trial.workdir)
  except files.DamagedFile:
    return  # The run repairs it.
  if existing is None:
    return
  existing = flat(existing)
  config = json.loads(json.dumps(trial.config.to_dict()))
  for field, value in flat(config).items():
    if existing.get(field) != value:
      raise ConfigError(
        f'{trial.workdir}: holds a run with {field}={existing.get(field)!r}, '
        f'not {value!r}; take another --out'
      )
