"""What a search looks for, on the network that the command line gives."""

import argparse
from collections.abc import Iterable, Iterator, Mapping
import math
from typing import Any, NamedTuple

from selsync_jax.commands.candidates import Candidates
from selsync_jax.config import ConfigError, RunError
from selsync_jax.report import facts
from selsync_jax.runs import files, history
from selsync_jax.runs.history import Trial
from selsync_jax.sync.network import Network
from selsync_jax.tune.choices import OWN
from selsync_jax.tune.curves import Curves
from selsync_jax.tune.objective import NOWHERE, Objective
from selsync_jax.tune.search import Result
from selsync_jax.tune.space import Space


class SearchGoal(NamedTuple):
  """The objective of a search, and how runs are measured by it."""

  objective: Objective
  words: str  # What its values are.
  network: str
  curves: Curves

  @property
  def about(self) -> dict[str, Any]:
    """What decides on the values of trials, for JSON."""
    return {
      'objective': self.words,
      'target and budget': [self.objective.target, self.objective.budget],
      'network': self.network,
      'seconds of a step': self.curves.compute,
    }

  def result(
    self, method: str, fields: Mapping[str, Any], trial: Trial
  ) -> Result:
    """Returns what a run has reached that is finished or has diverged."""
    points = self.curves.of(trial)()
    point = self.objective.decisive(points, trial.is_done)
    value = self.objective.value(point) if point else None
    return Result(method, {**fields}, trial, value, point or NOWHERE)


def _compute(
  candidates: Candidates, spaces: Iterable[Space], given: float | None
) -> dict[str, float]:
  """Returns the seconds of a worker's step, by the name of its optimizer.

  They are given, or measured once, and kept in a file.
  """
  path = candidates.out / 'compute.json'
  known = files.read(path, dict[str, float]) or {}
  own = candidates.own_method, {}  # It is trained in the end.
  for spec, fields in [*_optimizers(spaces), own]:
    name = candidates.settings(spec, fields).config.optimizer.name
    if name not in known:
      known[name] = given or candidates.step_seconds(spec, fields)
    if given and known[name] != given:
      raise ConfigError(
        f'--step={1e3 * given:g}ms: {path} has {1e3 * known[name]:.3g} ms for '
        f'{name}; take another --out'
      )
  files.write_json(path, known)
  return known


def _optimizers(
  spaces: Iterable[Space],
) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields methods with fields that together have every optimizer."""
  field = 'optimizer.name'
  for space in spaces:
    for spec, choices in space.choices.items():
      yield spec, {}
      names = choices.get(field)
      for name in names if isinstance(names, tuple) else ():
        if name != OWN:
          yield spec, {field: name}


def create(options: argparse.Namespace, reference: Trial) -> SearchGoal:
  """Returns the goal of a search; measures the steps of its optimizers.

  Args:
    options: the command line.
    reference: a finished run of BSP, which says by what metric runs are judged,
      and whose last score is the target by default.
  """
  candidates = options.candidates
  compute = _compute(candidates, options.spaces.values(), options.step)
  workers = reference.config.workers
  network = Network(workers, options.bandwidth, options.latency)
  run = history.read(reference.workdir)
  settings = candidates.settings(reference.config.sync.method, {})
  curves = Curves(run, settings, network, compute)
  score = f'validation {curves.metric}'
  if seconds := options.seconds:
    objective = Objective(curves.higher, 'seconds', seconds)
    words = f'{score} within {seconds:g} s'
  elif sent := options.bytes:
    objective = Objective(curves.higher, 'sent', sent)
    words = f'{score} within {facts.size(sent)} per worker'
  else:
    every = reversed(curves.of(reference)())
    last = next((p for p in every if not math.isnan(p.score)), None)
    if last is None:
      raise RunError(f'{reference.workdir}: BSP has no finite {score}')
    target = last.score if options.target is None else options.target
    objective = Objective(curves.higher, 'seconds', last.seconds, target)
    words = f'seconds to {score} {target:.4g}'
  return SearchGoal(
    objective,
    words,
    f'{network.workers} workers, {network.bandwidth / 1e6:g} Mbit/s, '
    f'{1e3 * network.latency:g} ms',
    curves,
  )
