"""The phases of `selsync tune`."""

import argparse
import collections
from collections.abc import Callable, Mapping, Sequence
import datetime
import itertools
import math
import pathlib
import threading
from typing import Any, NamedTuple

from selsync_jax.commands import pool
from selsync_jax.commands.pool import Processes
from selsync_jax.config import ConfigError, flat, RunError
from selsync_jax.report import facts
from selsync_jax.runs import files, fingerprint, history, workdir
from selsync_jax.runs.history import Trial
from selsync_jax.sync.network import Network
from selsync_jax.training.settings import METHOD
from selsync_jax.tune import choices, page
from selsync_jax.tune.attempt import Attempt
from selsync_jax.tune.curves import Curves
from selsync_jax.tune.objective import NOWHERE, Objective
from selsync_jax.tune.search import Result, Search
from selsync_jax.tune.space import Space

BSP = 'bsp'
RECIPE = 'recipe.py'


def tune(options: argparse.Namespace, run: Callable[..., None] | None) -> None:
  """Searches, trains the best trials again, and writes the recipe."""
  candidates = options.candidates
  processes = pool.create_processes(options.jobs)
  run = run or processes.run
  with workdir.claimed(candidates.out, '--out'):
    _refuse_other_code(options)
    _begin(1, 'BSP with the fields of the config, and the time of a step')
    reference = _train_reference(options, processes, run)
    workers = reference.config.workers
    curves = Curves(
      history.read(reference.workdir),
      candidates.settings(BSP, {}),
      Network(workers, options.bandwidth, options.latency),
      _compute(options),
    )
    objective = _objective(options, curves, reference)
    _Tuning(options, processes, run, reference, curves, objective).tune()


def _refuse_other_code(options: argparse.Namespace) -> None:
  """Raises `ConfigError` if code was edited after it trained trials.

  All trials of a search must run the same code, so none is trained again.
  """
  load, out = options.candidates.settings, options.candidates.out
  found = {
    f'{name}.{spec}' if name == METHOD else name: digests
    for space in options.spaces.values()
    for spec in space.choices
    for name, digests in load(spec, {}).code.items()
  }
  if changes := fingerprint.check(out, found, accept=True):
    raise ConfigError(
      f'--out={out}: holds a search, and {"; ".join(changes)}; choose '
      'another --out'
    )
  if found:
    fingerprint.write(out, found)


def _train_reference(
  options: argparse.Namespace, processes: Processes, run: Callable[..., None]
) -> Trial:
  """Returns a finished run of BSP, which defines how runs are judged."""
  (trial,) = options.candidates.trials(BSP, {}, 1, options.candidates.seed)
  processes.run_all([trial], run)
  if not trial.is_done:
    raise RunError(
      f'{trial.workdir}: BSP diverged with the fields of the config; '
      'lower config.optimizer.learning_rate'
    )
  return trial


def _compute(options: argparse.Namespace) -> dict[str, float]:
  """Returns the seconds of a worker's step, by the name of its optimizer.

  `--step` gives them, or they are measured once. A file keeps them.
  """
  given, candidates = options.step, options.candidates
  path = candidates.out / 'compute.json'
  known = files.read(path, dict[str, float]) or {}
  varied = [(candidates.own_method, {})]  # It is trained in the end.
  for space in options.spaces.values():
    for spec, fields in space.choices.items():
      names = fields.get('optimizer.name')
      names = names if isinstance(names, tuple) else ()
      others = [{'optimizer.name': n} for n in names if n != choices.OWN]
      varied += [(spec, own) for own in ({}, *others)]
  for spec, fields in varied:
    name = candidates.settings(spec, fields).config.optimizer.name
    if name not in known:
      known[name] = given or candidates.step_seconds(spec, fields)
    if given and known[name] != given:
      raise ConfigError(
        f'--step={1e3 * given:g}ms: {path} has {1e3 * known[name]:.3g} ms '
        f'for {name}; choose another --out'
      )
  files.write_json(path, known)
  return known


def _objective(
  options: argparse.Namespace, curves: Curves, reference: Trial
) -> Objective:
  """Returns the objective of the flags, by default BSP's last score."""
  score = f'validation {curves.metric}'
  if seconds := options.seconds:
    words = f'{score} within {seconds:g} s'
    return Objective(curves.higher, 'seconds', seconds, words=words)
  if sent := options.bytes:
    words = f'{score} within {facts.size(sent)} per worker'
    return Objective(curves.higher, 'sent', sent, words=words)
  every = reversed(curves.of(reference)())
  last = next((p for p in every if not math.isnan(p.score)), None)
  if last is None:
    raise RunError(f'{reference.workdir}: BSP has no finite {score}')
  target = last.score if options.target is None else options.target
  words = f'seconds to {score} {target:.4g}'
  return Objective(curves.higher, 'seconds', last.seconds, target, words)


class _Tuning(NamedTuple):
  """The phases of a search that come after the reference run."""

  options: argparse.Namespace
  processes: Processes
  run: Callable[..., None]  # Trains a trial in a process.
  reference: Trial
  curves: Curves
  objective: Objective

  def tune(self) -> None:
    """Runs all trials, trains the best again with new seeds; writes them."""
    options, candidates = self.options, self.options.candidates
    objective, curves = self.objective, self.curves
    searches = [self._search(*named) for named in options.spaces.items()]
    print('\n'.join(self._plan(*searches)), flush=True)
    _begin(2, 'trials of BSP, then of the methods')
    self._try(searches)
    of_bsp, found = (search.results() for search in searches)
    results = [*found, *of_bsp]
    results.sort(key=lambda result: objective.rank(result.value))
    if results[0].value is None:
      words = objective.words
      raise RunError(f'{candidates.out}: no trial has a value of {words}')
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
      f'{facts.setting(flat(best.run.config.to_dict()))}; {curves.network}; '
      f'{len(found)} trials, and {len(of_bsp)} of BSP, with one seed, the best '
      f'{options.finalists} of each with others; mean ± sample standard '
      f'deviation over {options.seeds} that chose nothing'
    )
    outcome = page.Outcome(objective, finals, tried)
    path = outcome.write(candidates.out, subtitle)
    recipe = candidates.out / RECIPE
    about = f'{outcome.verdict}.\n{options.line}'
    files.write(recipe, candidates.recipe(again['recipe'][0].run, about))
    outcome.show()
    print(f'{outcome.verdict}.\n{path}\n{recipe}')

  def _plan(self, bsp: Search, ours: Search) -> list[str]:
    """Returns lines about the runs to come, their time, and untried methods."""
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
          f'--trials={count}: no settings of {name} are searched, because the '
          f'first {first} trials have fixed settings'
        )
        tried = search.queued[:count]
        if never := [m for m in dict.fromkeys(search.queued) if m not in tried]:
          lines[-1] += f'; not tried: {", ".join(never)}'
    return lines

  def _search(self, name: str, space: Space) -> Search:
    """Opens a search; its first trials are the methods as in the config.

    With a budget of bytes, they also include settings that average as often as
    the budget allows, at the config's learning rate and at twice that rate.
    """
    objective, curves = self.objective, self.curves
    candidates = self.options.candidates
    seed = candidates.seed

    def make(spec, fields):
      (trial,) = candidates.trials(spec, fields, 1, seed)
      return trial._replace(flags=[*trial.flags, '--noreport'])

    about = {
      'seed': seed,
      'objective': objective.words,
      'target and budget': [objective.target, objective.budget],
      'network': curves.network,
      'seconds of a step': curves.compute,
      'space': space.digest,
    }
    out = candidates.out
    search = Search(
      *(out, name, about, space, objective, seed, make, curves.of)
    )
    for spec in space.choices:
      search.first(space.as_it_is(spec))
      if objective.is_of_bytes:

        def fits(fields, spec=spec):
          return curves.sent(make(spec, fields)) <= objective.budget

        for dense in space.densest(spec, fits):
          search.first(dense)
    return search

  def _try(self, searches: Sequence[Search]) -> None:
    """Runs the trials of each search, one search after the other."""
    count = self.options.trials
    begun = collections.defaultdict[pathlib.Path, list[Attempt]](list)
    turns = collections.defaultdict[pathlib.Path, threading.Lock](
      threading.Lock
    )
    done = sum(min(count, search.done) for search in searches)
    total = count * len(searches)

    def queue():
      indices = itertools.count(done)
      for search in searches:
        while attempt := search.ask(count):
          begun[attempt.run.workdir].append(attempt)
          turns[attempt.run.workdir]
          # Interrupted trials may exceed `count`, if it was lowered.
          yield min(next(indices), total - 1), attempt.run

    def run(trial):
      attempt = begun[trial.workdir].pop()
      with turns[trial.workdir]:  # Equal trials share a run.
        if not attempt() and not trial.is_done:
          try:
            self.run(trial, attempt)
          except pool.TrialFailed as error:
            is_mistake = error.code == ConfigError.code
            if not (is_mistake and choices.is_named(error.reason)):
              raise  # The rest are choices that only a run can check.
        attempt.tell()

    shares = [1.0] * done + [0.0] * (total - done)
    self.processes.run_each(queue(), shares, run)

  def _choose(
    self, found: Sequence[Result], of_bsp: Sequence[Result]
  ) -> tuple[Result, Result]:
    """Returns the best result of all, and BSP's best, by other seeds.

    The best of many trials with one seed is partly luck. Other seeds therefore
    rank the finalists, by the fewest misses first, and then by the mean value.
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
      ranks = [self.objective.rank(seed.value) for seed in seeds]
      reached = [*filter(math.isfinite, ranks)]
      return -len(reached) / len(ranks), sum(reached) / max(len(reached), 1)

    best, tuned = (min(group, key=rank) for group in finalists)
    return min(best, tuned, key=rank), tuned

  def _train_again(
    self, chosen: Mapping[Any, tuple[str, Mapping[str, Any]]], first: int
  ) -> dict[Any, list[Result]]:
    """Trains methods with fields, by any key, with seeds from `first` on.

    The seeds right after the config's choose nothing: they judge at the end.
    """
    trials = {
      key: self.options.candidates.trials(*each, self.options.seeds, first)
      for key, each in chosen.items()
    }
    every = {trial.workdir: trial for each in trials.values() for trial in each}
    self.processes.run_all(list(every.values()), self.run)
    return {
      key: [self._result(*chosen[key], trial) for trial in each]
      for key, each in trials.items()
    }

  def _result(
    self, method: str, fields: Mapping[str, Any], trial: Trial
  ) -> Result:
    """Returns the result of a run that is finished or has diverged."""
    point = self.objective.decisive(self.curves.of(trial)(), trial.is_done)
    value = self.objective.value(point) if point else None
    return Result(method, fields, trial, value, point or NOWHERE)


def _begin(phase: int, what: str) -> None:
  """Names the next phase; its bar follows."""
  print(f'phase {phase} of 4: {what}', flush=True)
