"""The phases of `selsync tune`."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
import datetime
import itertools
import json
import math
from typing import Any, NamedTuple

from selsync_jax.commands import pool
from selsync_jax.commands.pool import Processes
from selsync_jax.commands.tune import BSP
from selsync_jax.config import ConfigError, flat, RunError
from selsync_jax.report import facts
from selsync_jax.runs import files, history, workdir
from selsync_jax.runs.history import Trial
from selsync_jax.sync.network import Network
from selsync_jax.tune import choices, page
from selsync_jax.tune.curves import Curves
from selsync_jax.tune.objective import Objective
from selsync_jax.tune.search import listed, Result
from selsync_jax.tune.space import Recipe, Space

RECIPE = 'recipe.py'
SLOWER = 2.0
"""A trial is stopped when it has taken this many times as long as BSP."""
_DATABASE = 'tune.db'  # The trials of an earlier version.


def tune(options: argparse.Namespace, run: Callable[..., None] | None) -> None:
  """Searches, trains the best trials again, and writes the recipe."""
  candidates = options.candidates
  if (candidates.out / _DATABASE).exists():
    raise ConfigError(
      f'--out={candidates.out}: holds a search of an earlier version, '
      f'{_DATABASE}; choose another --out'
    )
  processes = pool.create_processes(options.jobs)
  run = run or processes.run
  with workdir.claimed(candidates.out, '--out'):
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

  `--step` gives them, or they are measured once. A file keeps them, for the
  code that was measured.
  """
  given, candidates = options.step, options.candidates
  path = candidates.out / 'compute.json'
  code = json.dumps(candidates.settings('bsp', {}).code, sort_keys=True)
  kept = files.read(path, dict[str, dict[str, float]]) or {}
  known = kept.get(code, {})
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
  files.write_json(path, {code: known})
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
  longest = SLOWER * last.seconds
  return Objective(curves.higher, 'seconds', longest, target, words)


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
    spaces = options.spaces.values()
    fixed = [self._fixed(space) for space in spaces]
    own = candidates.seed, options.trials, candidates.settings, self._run_of
    lists = [listed(*each, *own) for each in zip(spaces, fixed, strict=True)]
    print('\n'.join(self._plan(fixed, lists)), flush=True)
    _begin(2, 'trials of BSP, then of the methods')
    of_bsp, found = self._try(lists)
    results = sorted([*found, *of_bsp], key=self._rank)
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
    subtitle = (
      f'{facts.setting(flat(best.run.config.to_dict()))}; {curves.network}; '
      f'{len(found)} trials, and {len(of_bsp)} of BSP, with one seed, the best '
      f'{options.finalists} of each with others; mean ± sample standard '
      f'deviation over {options.seeds} that chose nothing'
    )
    outcome = page.Outcome(objective, finals, results)
    path = outcome.write(candidates.out, subtitle)
    recipe = candidates.out / RECIPE
    about = f'{outcome.verdict}.\n{options.line}'
    files.write(recipe, candidates.recipe(again['recipe'][0].run, about))
    outcome.show()
    print(f'{outcome.verdict}.\n{path}\n{recipe}')

  def _plan(
    self, fixed: Sequence[Sequence[Recipe]], lists: Sequence[Sequence[Result]]
  ) -> list[str]:
    """Returns lines about the runs to come, their time, and untried methods."""
    options = self.options
    count, seeds = options.trials, options.seeds
    trials = sum(not each.run.is_done for each in itertools.chain(*lists))
    choosing = 2 * options.finalists * seeds if options.finalists > 1 else 0
    total = trials + choosing + 3 * seeds
    each = history.read(self.reference.workdir).outcome['seconds']
    about = datetime.timedelta(seconds=round(each * total / options.jobs))
    lines = [
      f'at most {total} runs: {trials} trials, {choosing} that choose among '
      f'the best, {3 * seeds} that judge; about {about} with '
      f"--jobs={options.jobs}, if each takes as long as BSP's, {each:.1f} s"
    ]
    names = 'BSP', 'the methods'
    for name, first, found in zip(names, fixed, lists, strict=True):
      if count <= len(first):
        lines.append(
          f'--trials={count}: no settings of {name} are searched, because the '
          f'first {len(first)} trials have fixed settings'
        )
        tried = {result.method for result in found}
        every = dict.fromkeys(method for method, _ in first)
        if never := [method for method in every if method not in tried]:
          lines[-1] += f'; not tried: {", ".join(never)}'
      elif len(found) < count:
        lines.append(
          f'--trials={count}: only {len(found)} trials of {name}, because '
          'their choices give no more'
        )
    return lines

  def _fixed(self, space: Space) -> list[Recipe]:
    """Returns the first trials: the methods as in the config.

    With a budget of bytes, they also include settings that average as often as
    the budget allows, at the config's learning rate and at twice that rate.
    """
    found: list[Recipe] = []
    for spec in space.choices:
      found.append((spec, {}))
      if self.objective.is_of_bytes:

        def fits(fields, spec=spec):
          sent = self.curves.sent(self._run_of(spec, fields))
          return sent <= self.objective.budget

        found += [(spec, dense) for dense in space.densest(spec, fits)]
    return found

  def _run_of(self, spec: str, fields: Mapping[str, Any]) -> Trial:
    """Returns the run of a trial."""
    candidates = self.options.candidates
    (trial,) = candidates.trials(spec, fields, 1, candidates.seed)
    return trial._replace(flags=[*trial.flags, '--noreport'])

  def _try(self, lists: Sequence[Sequence[Result]]) -> list[list[Result]]:
    """Runs trials; returns the results of each list, the best first."""

    def run(trial):
      read = self.curves.of(trial)

      def is_over():
        return any(map(self.objective.is_over, read()))

      if is_over():
        return  # An earlier command stopped it here.
      try:
        self.run(trial, is_over)
      except pool.TrialFailed as error:
        is_mistake = error.code == ConfigError.code
        if not (is_mistake and choices.is_named(error.reason)):
          raise  # The rest are choices that only a run can check.

    self._run_once(itertools.chain(*lists), run)
    return [sorted(map(self._judged, each), key=self._rank) for each in lists]

  def _choose(
    self, found: Sequence[Result], of_bsp: Sequence[Result]
  ) -> tuple[Result, Result]:
    """Returns the best result of all, and BSP's best, by other seeds.

    The best of many trials with one seed is partly luck. Other seeds therefore
    rank the finalists, by the fewest misses first, and then by the mean value.
    """
    count = self.options.finalists
    finalists = [results[:count] for results in (found, of_bsp)]
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
    self, chosen: Mapping[Any, Recipe], first: int
  ) -> dict[Any, list[Result]]:
    """Trains methods with fields, by any key, with seeds from `first` on.

    The seeds right after the config's choose nothing: they judge at the end.
    """
    candidates, seeds = self.options.candidates, self.options.seeds
    again = {
      key: [
        Result(method, fields, trial)
        for trial in candidates.trials(method, fields, seeds, first)
      ]
      for key, (method, fields) in chosen.items()
    }
    self._run_once(itertools.chain(*again.values()), self.run)
    return {key: [*map(self._judged, each)] for key, each in again.items()}

  def _run_once(
    self, results: Iterable[Result], run: Callable[[Trial], None]
  ) -> None:
    """Calls `run` with the unfinished runs, which several results may share."""
    runs = {result.run.workdir: result.run for result in results}
    self.processes.run_all([*runs.values()], run)

  def _judged(self, result: Result) -> Result:
    """Returns the result of a run that has ended or diverged."""
    points = self.curves.of(result.run)()
    point = self.objective.decisive(points, result.run.is_done)
    if point is None:
      return result
    return result._replace(value=self.objective.value(point), point=point)

  def _rank(self, result: Result) -> float:
    return self.objective.rank(result.value)


def _begin(phase: int, what: str) -> None:
  """Names the next phase; its bar follows."""
  print(f'phase {phase} of 4: {what}', flush=True)
