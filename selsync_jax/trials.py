"""What a comparison runs: methods by settings by learning rates by seeds.

Fair by construction: all methods get the same grid of learning rates, the same
seeds (so the same weights, batches and draws) and the same budget.
"""

from collections.abc import Iterable, Sequence
import json
import pathlib
from typing import NamedTuple

import ml_collections

from selsync_jax import command
from selsync_jax import records
from selsync_jax import workdir as workdir_lib
from selsync_jax.config import ConfigError


class Trial(NamedTuple):
  """One run of a comparison.

  Attributes:
    label: the method and its settings.
    learning_rate: the schedule's peak.
    seed: of the run.
    workdir: of the run.
    flags: what `train.py` is told.
    config: what comes of them.
  """

  label: str
  learning_rate: float
  seed: int
  workdir: pathlib.Path
  flags: list[str]
  config: ml_collections.ConfigDict

  @property
  def is_done(self) -> bool:
    """Whether the run has come to its end."""
    return (self.workdir / records.SUMMARY).exists()


def plan(
  file: str,
  fields: Sequence[str],
  methods: Iterable[str],
  deltas: Sequence[float],
  learning_rates: Sequence[float],
  seeds: int,
  out: pathlib.Path,
) -> list[Trial]:
  """Every run of a comparison; a seed of all methods before the next seed.

  Args:
    file: of the config, `FILE` or `FILE:VARIANT`.
    fields: flags for all runs, each `--config.FIELD=VALUE`.
    methods: names of methods.
    deltas: for the methods that have a delta; none: the config's own.
    learning_rates: for all methods; none: the config's own.
    seeds: how many, from 0 on.
    out: the folder of the comparison.

  Raises:
    ConfigError: for a config that is not one, or a workdir that holds a run of
      another config.
  """
  trials = []
  for seed in range(seeds):
    for method in methods:
      name = command.with_method(file, method)
      has_delta = 'delta' in command.load(name, fields).sync
      for delta in (has_delta and deltas) or [None]:
        for rate in learning_rates or [None]:
          own = {'seed': seed, 'sync.delta': delta}
          own |= {'optimizer.learning_rate': rate}
          flags = [f'--config.{k}={v}' for k, v in own.items() if v is not None]
          trials.append(_trial(name, [*fields, *flags], out))
  return trials


def _trial(file, flags, out):
  config = command.load(file, flags)
  label, rate = _label(config.sync), config.optimizer.learning_rate
  folder = f'{label}, lr {rate:g}'.replace(', ', '-').replace(' ', '')
  trial = Trial(
    label=label,
    learning_rate=rate,
    seed=config.seed,
    workdir=out / folder / f'seed{config.seed}',
    flags=[f'--config={file}', *flags],
    config=config,
  )
  _check_workdir(trial)
  return trial


def _label(sync):
  """A method and its numbers: `selsync, delta 0.1`."""
  numbers = [
    f'{name} {value:g}'
    for name, value in sync.items()
    if isinstance(value, int | float)
  ]
  return ', '.join([sync.method, *numbers])


def _check_workdir(trial):
  """Raises `ConfigError` if its workdir holds a run of another config."""
  path = trial.workdir / workdir_lib.CONFIG
  if not path.exists():
    return
  there = workdir_lib.flat(json.loads(path.read_text()))
  asked = json.loads(json.dumps(trial.config.to_dict()))
  for field, value in workdir_lib.flat(asked).items():
    if there.get(field) != value:
      raise ConfigError(
        f'{trial.workdir}: holds a run with {field}={there.get(field)!r}, '
        f'asked is {value!r}; take another --out'
      )
