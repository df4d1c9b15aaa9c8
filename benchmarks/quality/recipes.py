"""Finds recipes for `benchmarks.quality.evidence`: tries, chooses, retrains.

Each setting of a family is tried at some learning rates, with one seed. The
best trial on validation is trained with other seeds. `selsync tune` gets as
many trials for each of its methods.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import itertools
import pathlib
import re
import subprocess
import sys
import tomllib
from typing import Any, NamedTuple, TypeVar

from benchmarks.quality import families, runs
from benchmarks.quality.families import BSP
from selsync_jax.commands import config_file
from selsync_jax.commands.trials import list_trials
from selsync_jax.report import comparison_table
from selsync_jax.runs import files, history
from selsync_jax.runs.history import Trial

SPACE = 'benchmarks/quality/evidence.toml'
TUNE = 'found by `tune`'
SHARE = 0.03  # Share of BSP's bytes, for `tune`.
TUNING_SEED = 50
SEEDS = 80  # The first seed of the final runs.

Name = TypeVar('Name')


class Recipe(NamedTuple):
  """A method with its fields, as in `compare`, and its learning rate."""

  spec: str
  rate: float


class Workload(NamedTuple):
  """A task, whole or in its quick form.

  Attributes:
    config: the name of a config, with its variant.
    fields: arguments that change the config for all runs.
    trials: number of trials for a family.
    folder: folder of the runs.
  """

  config: str
  fields: list[str]
  trials: int
  folder: pathlib.Path

  @classmethod
  def create(
    cls,
    config: str,
    fields: Mapping[str, Any],
    trials: int,
    folder: pathlib.Path,
    idx_dir: str | None,
  ) -> 'Workload':
    """Returns a workload whose runs are evaluated at their end alone.

    `idx_dir` is a folder with the files of Fashion-MNIST, if the config reads
    them.
    """
    named = config_file.with_method(config, 'bsp')
    given = {
      'data.backend': 'numpy',
      'mapper': 'map',  # Faster for several runs at a time.
      'eval.every_epochs': 1000.0,
      **fields,
    }
    if idx_dir and config_file.load(named, []).data.name == 'fashion_mnist':
      given['data.idx_dir'] = idx_dir
    return cls(config, config_file.arguments(given), trials, folder)

  def list_trials(
    self,
    spec: str,
    rates: Sequence[Callable[[float], float]],
    seed: int,
    seeds: int = 1,
  ) -> list[Trial]:
    """The runs of a method, with seeds from `seed` on."""
    own = [*self.fields, f'--config.seed={seed}']
    return list_trials(
      self.config, own, [spec], self.folder, learning_rates=rates, seeds=seeds
    )

  def tried(
    self, specs: Iterable[str], rates: Sequence[Callable[[float], float]]
  ) -> dict[Recipe, Trial]:
    """The trials of some methods at some learning rates."""
    return {
      Recipe(spec, trial.learning_rate): trial
      for spec in specs
      for trial in self.list_trials(spec, rates, TUNING_SEED)
    }

  def family(self, name: str) -> dict[Recipe, Trial]:
    """The trials of a family; BSP, the baseline, has every learning rate."""
    settings = families.FAMILIES[name]
    own = self.trials // len(settings)
    rates = families.rates(len(families.RATES) if name == BSP else own)
    return self.tried(settings, rates)

  def again(
    self, recipe: Recipe, seeds: int, first: int = SEEDS
  ) -> list[Trial]:
    """The final runs of a recipe, with seeds from `first` on."""
    rates = [lambda _: recipe.rate]
    return self.list_trials(recipe.spec, rates, first, seeds)

  def search(self, sent: float, jobs: int) -> Recipe:
    """The result of `selsync tune` for a worker that sends `sent` bytes."""
    with open(SPACE, 'rb') as file:
      count = len(tomllib.load(file)) * self.trials
    out = self.folder / 'tune'
    subprocess.run(
      [
        *(sys.executable, '-m', 'selsync_jax', 'tune', f'--out={out}'),
        *(f'--config={self.config}', *self.fields, f'--space={SPACE}'),
        *(f'--config.seed={TUNING_SEED}', f'--bytes={sent:.0f}B'),
        *(
          f'--trials={count}',
          '--seeds=1',
          '--finalists=1',
          '--step=1ms',
          f'--jobs={jobs}',
        ),
      ],
      check=True,
    )
    return self.recipe(f'{out}/recipe.py')

  def recipe(self, path: str) -> Recipe:
    """The recipe in a config file that `selsync tune` has written."""
    found = config_file.load(path, [])
    method, rate = found.sync.method, found.optimizer.learning_rate
    named = config_file.with_method(self.config, method)
    own = config_file.load(named, self.fields)
    changed = [
      f'{re.sub(r"[.](name|steps)$", "", field)}={value}'
      for field, _, value in files.differences(own.to_dict(), found.to_dict())
      if field != 'optimizer.learning_rate'
    ]
    return Recipe('+'.join([method, *changed]), rate)


def best(tried: Mapping[Recipe, Trial]) -> Recipe:
  """The recipe whose trial is the best on validation."""

  def rank(recipe):
    (entry,) = comparison_table.read_entries([tried[recipe]])
    return entry.rank

  return max(tried, key=rank)


def choose(
  tried: Mapping[Name, Mapping[Recipe, Trial]], jobs: int
) -> dict[Name, Recipe]:
  """Trains trials; returns the best recipe of each name."""
  runs.train_all((t for each in tried.values() for t in each.values()), jobs)
  return {name: best(each) for name, each in tried.items()}


def retrain(
  workload: Workload,
  recipes: Mapping[Name, Recipe],
  seeds: int,
  jobs: int,
  first: int = SEEDS,
) -> dict[Name, list[Trial]]:
  """Trains recipes with seeds from `first` on; returns the final runs."""
  finals = {
    name: workload.again(recipe, seeds, first)
    for name, recipe in recipes.items()
  }
  runs.train_all(itertools.chain.from_iterable(finals.values()), jobs)
  return finals


def train(
  workload: Workload, names: Iterable[str], seeds: int, jobs: int
) -> dict[str, list[Trial]]:
  """Tries families and `tune`; trains the best of each with other seeds."""
  tried = {name: workload.family(name) for name in names}
  recipes = choose(tried, jobs)
  bsp = history.read(tried[BSP][recipes[BSP]].workdir)
  sent = SHARE * bsp.outcome['bytes_per_worker']
  recipes[TUNE] = workload.search(sent, jobs)
  return retrain(workload, recipes, seeds, jobs)
