"""Reads a run back from its workdir, finished or not."""

import collections
from collections.abc import Iterable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import types
from typing import Any, NamedTuple

from jaxtyping import Float, Int, Shaped
import ml_collections
import numpy as np

from selsync_jax.config import ConfigError, flat, RunError
from selsync_jax.methods.parts import BARE
from selsync_jax.models import tasks
from selsync_jax.models.tasks import Goal
from selsync_jax.runs import files, fingerprint, per_worker, records


def composition(sync: Mapping[str, Any]) -> str:
  """Returns the method of a config's `sync`, with its replaced parts."""
  replaced = [
    f'{kind} {sync[kind][name]}'
    for kind, name in BARE.items()
    if sync.get(kind, {}).get(name)
  ]
  return ', '.join([sync['method'], *replaced])


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a config's method, workers and seed, for an outcome."""
  own = {name: config[name] for name in ('workers', 'seed') if name in config}
  return {'method': composition(config['sync']), **own}


@dataclasses.dataclass(frozen=True)
class Run:
  """The records of one run."""

  name: str  # A part of its path that distinguishes the run from others.
  workdir: pathlib.Path
  config: dict[str, Any]  # As it was resolved when the run last started.
  rows: list[dict[str, Any]]  # From `metrics.jsonl`; at least one.
  summary: dict[str, Any] | None = None  # Missing in an unfinished run.
  # See `records.read_data`.
  data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  sessions: Sequence[Mapping[str, Any]] = ()  # See `provenance`.

  @functools.cached_property
  def fields(self) -> dict[str, Any]:
    """The config by dotted names."""
    return flat(self.config)

  @property
  def method(self) -> str:
    """The method, with its replaced parts."""
    return composition(self.config['sync'])

  @functools.cached_property
  def goal(self) -> Goal:
    """How the run is judged; an earlier version did not record it."""
    if recorded := self.data.get('goal'):
      return Goal(recorded['main'], tuple(recorded['higher']))
    names = {field for row in [*self.rows, self.summary or {}] for field in row}
    ours = (tasks.TASKS[task].goal for task in _JUDGED)
    every = (goal for goal in ours if f'validation_{goal.main}' in names)
    return next(every, Goal())

  @property
  def outcome(self) -> dict[str, Any]:
    """The summary; for an unfinished run, the same fields from its rows."""
    if self.summary is not None:
      return self.summary
    last, counts = self.rows[-1], {}
    if self.is_lockstep:
      syncs = int(self.sync_steps[-1])
      counts = {'sync_steps': syncs, 'local_steps': last['step'] - syncs}
    return {
      **identity(self.config),
      'steps': last['step'],
      **counts,
      **{k: last[k] for k in _TOTALS if k in last},
      **newest_scores(self.rows),
    }

  @property
  def share_of_bsp(self) -> float:
    """The bytes sent, divided by the bytes of the same run under BSP."""
    sent, bsp = 'bytes_per_worker', 'bytes_per_worker_bsp'
    # A single worker sends nothing, under BSP too.
    return self.outcome[sent] / max(self.outcome[bsp], 1)

  @property
  def units(self) -> Mapping[str, str]:
    """The units of metrics, if recorded."""
    return self.data.get('units', {})

  @property
  def label_counts(self) -> Int[np.ndarray, 'workers labels'] | None:
    """Examples of each label in each worker's chunk, if recorded."""
    labels = self.data.get('labels')
    return np.array(labels) if labels else None

  @functools.cached_property
  def columns(self) -> Mapping[str, Float[np.ndarray, 'rows']]:
    """The numbers of all rows by field; NaN where a row lacks the field."""
    rows = [records.numbers(row) for row in self.rows]
    names = {name for row in rows for name in row}
    return collections.defaultdict(
      lambda: np.full(len(rows), np.nan),
      {n: np.array([row.get(n, np.nan) for row in rows], float) for n in names},
    )

  @functools.cached_property
  def worker_values(self) -> Mapping[str, list[Shaped[np.ndarray, '...']]]:
    """The rows' values per worker by column; empty where a row lacks them."""
    steps = [row['step'] for row in self.rows]
    rows = records.read_workers(self.workdir, steps)
    return {
      name: [row.get(name, np.empty(0, kind)) for row in rows]
      for name, kind in per_worker.COLUMNS.items()
    }

  @functools.cached_property
  def changes(self) -> Float[np.ndarray, 'rows workers']:
    """The relative gradient change of each worker, without unit.

    It is infinite where there was no earlier gradient. It is NaN where a
    gradient was skipped because it was not finite, and for workers that the run
    did not have at that step.
    """
    known = self.worker_values['relative_changes']
    most = max(map(len, known)) or self.config['workers']
    changes = np.full((len(self.rows), most), np.nan)
    for out, row in zip(changes, known, strict=True):
      out[: len(row)] = row
    return changes

  @property
  def is_lockstep(self) -> bool:
    """Whether the workers take the same steps."""
    return 'lssr' in self.rows[-1]

  @property
  def is_simulated(self) -> bool:
    """Whether the run has virtual time."""
    return 'virtual_seconds' in self.outcome

  @property
  def sync_steps(self) -> Int[np.ndarray, 'rows']:
    """The number of synchronizations up to each row's step."""
    return np.rint((1 - self.columns['lssr']) * self.columns['step']).astype(
      int
    )

  @functools.cached_property
  def threshold(self) -> Float[np.ndarray, 'rows'] | None:
    """The threshold of SelSync's vote; `None` for a method without one."""
    if 'threshold' in self.rows[-1]:  # A budget moves it.
      return self.columns['threshold']
    sync = self.config['sync']
    trigger = sync.get('trigger', {})
    own = trigger if 'name' in trigger else {**sync, **trigger}
    delta = own.get('delta')
    return None if delta is None else np.full(len(self.rows), delta)

  @functools.cached_property
  def metrics(self) -> list[str]:
    """The metrics of the consensus, the loss first."""
    return [*dict.fromkeys(['loss', *_validation_metrics(*self.rows)])]

  @property
  def validated(self) -> list[str]:
    """The metrics on validation, finite or not; the main one first."""
    names, main = _validation_metrics(self.outcome), self.goal.main
    return sorted(names, key=lambda name: (name != main, name == 'loss'))

  @property
  def metric(self) -> str | None:
    """The first metric in `validated` that is finite, if any."""
    for name in self.validated:
      if self.outcome[f'validation_{name}'] is not None:
        return name
    return None

  def rank(self, metric: str | None = None) -> float:
    """Returns a metric on validation, negated if lower values are better.

    It is the main metric by default. A score that is missing or not finite
    ranks lowest. No other metric replaces it, because the ranks of two runs
    must be comparable.
    """
    name = metric or next(iter(self.validated), 'loss')
    value = self.outcome.get(f'validation_{name}')
    if value is None or not math.isfinite(value):
      return -math.inf
    return value if name in self.goal.higher else -value

  def is_share(self, metric: str, values: Iterable[float]) -> bool:
    """Returns whether a metric looks like a share of correct answers.

    Higher is better for it, and its values are in [0, 1]. BLEU and R squared
    may be outside.
    """
    return metric in self.goal.higher and all(0 <= v <= 1 for v in values)


def _validation_metrics(*rows: Mapping[str, Any]) -> list[str]:
  prefix = 'validation_'
  fields = [field for row in rows for field in row]
  return [f.removeprefix(prefix) for f in fields if f.startswith(prefix)]


# The tasks whose main metric is not the loss, in the order of precedence.
_JUDGED = ('language_modeling', 'classification')
_TOTALS = (
  *('lssr', 'samples', 'bytes_per_worker'),
  *('seconds', 'samples_per_second', 'virtual_seconds'),
)


def is_score(field: str) -> bool:
  """Returns whether a field of a row or summary is a score."""
  return field.startswith(('test_', 'validation_'))


def newest_scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the scores of the last row that has some."""
  each = ({k: row[k] for k in row if is_score(k)} for row in reversed(rows))
  return next(filter(None, each), {})


def read(workdir: pathlib.Path, name: str | None = None) -> Run:
  """Reads a run, finished or not; figures name it `name`, or as its folder.

  Raises:
    ConfigError: if there is no run, or it has not logged a step yet.
    RunError: if a file is damaged.
  """
  try:
    config, rows, summary, data, sessions = records.read(workdir)
    if len(set(map(len, data.get('labels') or ()))) > 1:
      raise files.DamagedFile(workdir / records.DATA, 'labels is not a table')
  except files.DamagedFile as error:
    raise RunError(
      f'{error}; repeat the command of this run to repair it'
    ) from error
  if config is None or not (workdir / records.METRICS).exists():
    missing = records.CONFIG if config is None else records.METRICS
    raise ConfigError(f'{workdir}: not the workdir of a run, no {missing}')
  if not rows:
    raise ConfigError(f'{workdir}: this run has not logged a step yet')
  if summary and summary['steps'] < rows[-1]['step']:
    summary = None  # An earlier session wrote it; the run resumed since.
  name = name or workdir.resolve().name
  return Run(name, workdir, config, rows, summary, data, sessions)


def read_all(workdirs: Sequence[pathlib.Path]) -> list[Run]:
  """Reads several runs, each named by the part of its path that differs."""
  if len(workdirs) == 1:
    return [read(workdirs[0])]
  paths = [workdir.resolve() for workdir in workdirs]
  shared = os.path.commonpath(paths)
  return [read(path, os.path.relpath(path, shared)) for path in paths]


class Trial(NamedTuple):
  """A run of a comparison: a method with one learning rate and one seed."""

  label: str  # The method and its settings.
  learning_rate: float  # The schedule's peak.
  seed: int
  workdir: pathlib.Path
  flags: list[str]  # The arguments of the command, without the workdir.
  config: ml_collections.ConfigDict  # The result of the flags.
  command: str = 'train'  # Or `simulate`.
  code: Mapping[str, Any] = types.MappingProxyType({})  # See `Settings`.
  spec: str = ''  # The method with its own fields, as it was given.

  @property
  def changes(self) -> list[str]:
    """Differences between this trial's code and the code of its run."""
    with contextlib.suppress(files.DamagedFile):
      return fingerprint.check(self.workdir, {**self.code}, accept=True)
    return []

  @property
  def is_done(self) -> bool:
    """Whether this code has finished the run, with a readable summary."""
    with contextlib.suppress(files.DamagedFile):
      finished = records.read_summary(self.workdir) is not None
      return finished and not self.changes
    return False

  @property
  def share_done(self) -> float:
    """The share of the run that is done, in [0, 1], by its last logged step."""
    row = records.last_row(self.workdir)
    if row is None:
      return 0.0
    steps, epochs = self.config.steps, self.config.epochs
    return min(row['step'] / steps if steps else row['epoch'] / epochs, 1.0)
