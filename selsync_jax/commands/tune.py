"""Search for the method and settings that serve a network best.

  selsync tune --config=configs/digits.py --bandwidth=1Gbit --trials=60

tries methods with their settings, and BSP as often; every trial is a run as
`compare` trains it. The best one is trained again with other seeds, beside the
best of BSP, and written as a config file.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import datetime
import functools
import itertools
import math
import pathlib
import shlex
from typing import Any, NamedTuple, TYPE_CHECKING

from selsync_jax.commands import compare, config_file, flags
from selsync_jax.commands.candidates import Candidates
from selsync_jax.config import ConfigError, RunError

if TYPE_CHECKING:
  from selsync_jax.commands.goals import SearchGoal
  from selsync_jax.commands.pool import Processes
  from selsync_jax.runs.history import Trial
  from selsync_jax.tune.search import Asked, Result, Search
  from selsync_jax.tune.space import Load, Space

BSP = 'bsp'
GRADIENTS = 'sync.averager=mean+sync.reducer=all_reduce+sync.period=1000000'
"""Fields that make a method BSP: every gradient is averaged, parameters never.
"""
METHODS = (
  'selsync,local_sgd,muloco+sync.averager=mean,diloco,sparse_loco,noloco,'
  'sparta,fedadagrad,power_sgd'
)
RECIPE = 'recipe.py'


def parse(arguments: Sequence[str]) -> argparse.Namespace:
  """Parses the command line; adds what follows from them."""
  line = flags.CommandLine('tune', config=config_file.DEFAULT)
  about = 'Methods besides BSP, as in compare. Default: those of docs/tune.md.'
  line.flag('methods', about, flags.names)
  line.flag('space', 'TOML file of what to choose from.', pathlib.Path)
  about = 'Bandwidth of each link, per direction; 1GB/s is in bytes.'
  line.flag('bandwidth', about, flags.bandwidth, '1Gbit')
  line.flag('latency', 'One-way latency of a message.', flags.latency, '1ms')
  about = 'Score to reach as soon as possible. Default: that of BSP.'
  line.flag('target', about, flags.number)
  about = 'Or the seconds on the network, in which the best score counts.'
  line.flag('seconds', about, flags.positive)
  about = 'Or the bytes that a worker may send for it: 10MB.'
  line.flag('bytes', about, flags.size)
  about = 'Trials of the methods, and of BSP.'
  line.flag('trials', about, flags.whole(1), '60')
  about = 'Number of new seeds for the best ones.'
  line.flag('seeds', about, flags.whole(1), '3')
  about = 'Best trials that other seeds choose from.'
  line.flag('finalists', about, flags.whole(1), '3')
  line.flag('jobs', 'Runs at a time.', flags.whole(1), '1')
  about = 'Time that a step computes: 5ms. Default: measured.'
  line.flag('step', about, flags.duration)
  line.flag('out', 'Folder. Default: runs/tune-CONFIG.', flags.folder)
  options = line.parse(arguments)
  names = 'target', 'seconds', 'bytes'
  given = [f'--{n}' for n in names if getattr(options, n) is not None]
  if len(given) > 1:
    raise ConfigError(f'{", ".join(given)}: give one of them')
  compare.refuse_method(options.file)
  options.line = shlex.join(['selsync', 'tune', *arguments])
  name = '-'.join(['tune', *config_file.names(options.file)])
  out = options.out or pathlib.Path('runs', name)
  options.candidates = Candidates(options.file, options.fields, out)
  mesh = options.candidates.settings(BSP, {}).config.mesh
  if math.prod(mesh.values()) > 1:
    raise ConfigError(
      f'config.mesh={mesh.to_dict()}: tune has workers of one device'
    )
  options.spaces = _spaces(options)
  return options


def _spaces(options: argparse.Namespace) -> dict[str, 'Space']:
  """Returns the space of each search, by the search's name."""
  from selsync_jax.tune import (
    choices,
    space,  # Imports JAX.
  )

  given = choices.read(options.space) if options.space else {}
  methods = options.methods or [m for m in given if m not in (choices.ALL, BSP)]
  methods = methods or flags.names(METHODS)
  if methods == ['all']:
    methods = compare.able_methods(options.file, options.fields)
  methods = [method for method in methods if method != BSP]
  if not methods:
    raise ConfigError(f'--methods={BSP}: must name another method, too')
  load, fixed = options.candidates.settings, options.candidates.fixed
  of_bsp = _of_bsp(methods, load)
  known = [choices.ALL, *of_bsp, *methods]
  for method in given:
    if method not in known:
      raise ConfigError(
        f'--space={options.space}: [{method}] is not one of {", ".join(known)}'
      )
  own = options.candidates.own_method
  load(own, {})  # It is trained in the end.
  methods.sort(key=lambda spec: spec != own)  # It comes first.
  spaces = {
    BSP: space.build(of_bsp, load, fixed | space.OF_AVERAGES, given),
    'methods': space.build(methods, load, fixed, given),
  }
  of_all = given.get(choices.ALL, {})
  space.check_used(spaces.values(), load, fixed, of_all)
  return spaces


def _of_bsp(methods: Sequence[str], load: 'Load') -> list[str]:
  """Returns BSP with the config's optimizer, and with all others of methods."""

  @functools.cache
  def optimizer(method):
    return load(method, {}).config.optimizer.name

  found = {optimizer(BSP): BSP}
  for method in methods:
    if optimizer(method) not in found:
      name, *own = method.split('+')
      is_own = optimizer(name) != optimizer(BSP)
      given = [field for field in own if field.startswith('optimizer.')]
      spec = [name, GRADIENTS, *given] if is_own else [BSP, *given]
      found[optimizer(method)] = '+'.join(spec)
  return list(found.values())


def main(
  arguments: Sequence[str], run: Callable[..., None] | None = None
) -> None:
  """Searches, trains the best ones again, and writes the recipe.

  `run` trains a trial; by default it is `run` of `pool.Processes`.
  """
  options = parse(arguments)
  from selsync_jax.commands import (
    goals,
    pool,  # Imports NumPy, and rich.
  )
  from selsync_jax.runs import workdir

  processes = pool.create_processes(options.jobs)
  run = run or processes.run
  with workdir.claimed(options.candidates.out, '--out'):
    _refuse_other_code(options)
    reference = _train_reference(options, processes, run)
    goal = goals.create(options, reference)
    _Tuning(options, processes, run, reference, goal).tune()


def _refuse_other_code(options: argparse.Namespace) -> None:
  """Raises `ConfigError` if trials have been trained by code since edited.

  All trials of a search must run the same code, so none is trained again.
  """
  from selsync_jax.runs import fingerprint
  from selsync_jax.training.settings import METHOD

  load, out = options.candidates.settings, options.candidates.out
  found = {
    f'{name}.{spec}' if name == METHOD else name: digests
    for space in options.spaces.values()
    for spec in space.choices
    for name, digests in load(spec, {}).code.items()
  }
  if changes := fingerprint.differences(out, found):
    raise ConfigError(
      f'--out={out}: holds a search, and {"; ".join(changes)}; take another '
      '--out'
    )
  if found:
    fingerprint.write(out, found)


def _train_reference(
  options: argparse.Namespace, processes: 'Processes', run: Callable[..., None]
) -> 'Trial':
  """Returns a finished run of BSP with the fields of the config."""
  (trial,) = options.candidates.trials(BSP, {}, 1, options.candidates.seed)
  _begin(1, 'BSP with the fields of the config, and the time of a step')
  processes.run_all([trial], run)
  if not trial.is_done:
    raise RunError(
      f'{trial.workdir}: BSP diverged with the fields of the config; '
      'lower config.optimizer.learning_rate'
    )
  return trial


class _Tuning(NamedTuple):
  """The phases of a search that follow the reference."""

  options: argparse.Namespace
  processes: 'Processes'
  run: Callable[..., None]  # Trains a trial in one of the processes.
  reference: 'Trial'
  goal: 'SearchGoal'

  def tune(self) -> None:
    """Tries, and trains the best ones again with new seeds; writes them."""
    from selsync_jax.report import facts
    from selsync_jax.runs import files
    from selsync_jax.tune import page

    options, goal, candidates = self.options, self.goal, self.options.candidates
    searches = [self._search(*named) for named in options.spaces.items()]
    print('\n'.join(self._plan(*searches)), flush=True)
    _begin(2, 'trials of BSP, then of the methods')
    self._try(searches)
    of_bsp, found = (search.results() for search in searches)
    results = [*found, *of_bsp]
    results.sort(key=lambda result: goal.objective.rank(result.value))
    if results[0].value is None:
      raise RunError(f'{candidates.out}: no trial has a value of {goal.words}')
    _begin(3, 'the best trials with other seeds, which choose one')
    best, tuned = self._choose(found, of_bsp)
    chosen = {
      'recipe': (best.method, best.fields),
      'tuned BSP': (tuned.method, tuned.fields),
      'config': (candidates.own_method, {}),
    }
    _begin(4, 'the recipe, tuned BSP, and the config with new seeds')
    again = self._train_again(chosen, candidates.seed + 1)
    finals = [
      page.Final(name, seeds[0].label, seeds) for name, seeds in again.items()
    ]
    tried = [each for each in results if not math.isnan(each.point.score)]
    subtitle = (
      f'{facts.setting(best.run.config.to_dict())}; {goal.network}; '
      f'{len(found)} trials, and {len(of_bsp)} of BSP, with one seed, the best '
      f'{options.finalists} of each with others; mean ± sample standard '
      f'deviation over {options.seeds} that chose nothing'
    )
    outcome = page.Outcome(
      goal.objective, goal.words, goal.curves.metric, finals, tried
    )
    path = outcome.write(candidates.out, subtitle)
    recipe = candidates.out / RECIPE
    about = f'{outcome.verdict}.\n{options.line}'
    files.write(recipe, candidates.recipe(again['recipe'][0].run, about))
    outcome.show()
    print(f'{outcome.verdict}.\n{path}\n{recipe}')

  def _plan(self, bsp: 'Search', ours: 'Search') -> list[str]:
    """Returns lines about the runs to come, their time, and untried methods."""
    from selsync_jax.runs import history

    options = self.options
    count, seeds = options.trials, options.seeds
    trials = sum(max(count - search.done, 0) for search in (bsp, ours))
    choosing = 2 * options.finalists * seeds if options.finalists > 1 else 0
    total = trials + choosing + 3 * seeds
    each = history.read(self.reference.workdir).outcome['seconds']
    about = datetime.timedelta(seconds=round(each * total / options.jobs))
    lines = [
      f'at most {total} runs: {trials} trials, {choosing} that choose among '
      f'the best, {3 * seeds} that judge; about {about} with '
      f"--jobs={options.jobs}, if each takes as long as BSP's, {each:.1f} s"
    ]
    for name, search in (('BSP', bsp), ('the methods', ours)):
      if count <= (first := len(search.queued)):
        lines.append(
          f'--trials={count}: no settings of {name} are searched, because '
          f'those of the first {first} trials are fixed'
        )
        tried = search.queued[:count]
        if never := [m for m in dict.fromkeys(search.queued) if m not in tried]:
          lines[-1] += f'; not tried: {", ".join(never)}'
    return lines

  def _search(self, name: str, space: 'Space') -> 'Search':
    """Opens a search; its first trials are the methods as they are.

    Within a budget of bytes, they also are those that average as often as it
    lets, with the config's learning rate and twice that.
    """
    from selsync_jax.tune.search import Search

    goal, candidates = self.goal, self.options.candidates
    seed = candidates.seed

    def make(spec, fields):
      (trial,) = candidates.trials(spec, fields, 1, seed)
      return trial._replace(flags=[*trial.flags, '--noreport'])

    about = {'seed': seed, **goal.about, 'space': space.digest}
    search = Search(
      candidates.out, name, about, space, goal.objective, seed, make
    )
    for spec in space.choices:
      search.first(space.as_it_is(spec))
      if goal.objective.is_of_bytes:

        def fits(fields, spec=spec):
          return goal.curves.sent(make(spec, fields)) <= goal.objective.budget

        for choices in space.densest(spec, fits):
          search.first(choices)
    return search

  def _try(self, searches: Sequence['Search']) -> None:
    """Runs the trials of each search, one search after the other."""
    from selsync_jax.commands import pool
    from selsync_jax.tune import choices

    begun: dict[pathlib.Path, tuple[Search, Asked]] = {}
    count = self.options.trials
    total = count * len(searches)

    def queue(done):
      indices = itertools.count(done)
      for search in searches:
        while asked := search.ask(count):
          begun[asked.run.workdir] = search, asked
          # An interrupted one is above `count`, if that is a lower one now.
          yield min(next(indices), total - 1), asked.run

    def run(trial):
      search, asked = begun.pop(trial.workdir)
      judge = search.judge(asked, self.goal.curves.of(trial))
      if not judge() and not trial.is_done:
        try:
          self.run(trial, judge)
        except pool.TrialFailed as error:
          is_mistake = error.code == ConfigError.code
          if not (is_mistake and choices.is_named(error.reason)):
            raise  # Otherwise only the run could check its choices.
        judge()
      search.tell(asked, judge)

    while True:  # More than once if a trial has waited for an equal one.
      done = sum(min(count, search.done) for search in searches)
      trials = queue(done)
      if not (first := next(trials, None)):
        return
      shares = [1.0] * done + [0.0] * (total - done)
      trials = itertools.chain([first], trials)
      self.processes.run_each(trials, shares, run)

  def _choose(
    self, found: Sequence['Result'], of_bsp: Sequence['Result']
  ) -> tuple['Result', 'Result']:
    """Returns the best result of all, and that of BSP, by other seeds.

    The best of many trials with one seed is partly luck. So the finalists have
    others: the fewest misses count first, and then the mean value.
    """
    count = self.options.finalists
    groups = [
      [*{each.run.workdir: each for each in results}.values()]
      for results in (found, of_bsp)
    ]
    finalists = [group[:count] for group in groups]
    chosen = {
      each.run.workdir: (each.method, each.fields)
      for group in finalists
      if count > 1
      for each in group
      if each.value is not None
    }
    own = self.options.candidates.seed
    again = self._train_again(chosen, own + 1 + self.options.seeds)

    def rank(result):
      seeds = again.get(result.run.workdir, [result])
      ranks = [self.goal.objective.rank(seed.value) for seed in seeds]
      reached = [*filter(math.isfinite, ranks)]
      return -len(reached) / len(ranks), sum(reached) / max(len(reached), 1)

    best, tuned = (min(group, key=rank) for group in finalists)
    return min(best, tuned, key=rank), tuned

  def _train_again(
    self, chosen: Mapping[Any, tuple[str, Mapping[str, Any]]], first: int
  ) -> dict[Any, list['Result']]:
    """Trains methods with fields, by any key, with seeds from `first` on.

    The seeds after the config's own judge in the end, and choose nothing.
    """
    trials = {
      key: self.options.candidates.trials(*each, self.options.seeds, first)
      for key, each in chosen.items()
    }
    every = {trial.workdir: trial for each in trials.values() for trial in each}
    self.processes.run_all(list(every.values()), self.run)
    return {
      key: [self.goal.result(*chosen[key], trial) for trial in each]
      for key, each in trials.items()
    }


def _begin(phase: int, what: str) -> None:
  """Names the next phase; its bar follows."""
  print(f'phase {phase} of 4: {what}', flush=True)
