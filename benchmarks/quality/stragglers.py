"""Which method for which cluster: every method on three virtual clusters.

  python -m benchmarks.quality.stragglers --into=docs/stragglers.md

Trains digits and hyperplane with every built-in method, lockstep and
asynchronous, with three seeds, on three clusters: all workers equal, one worker
at half speed, and a random worker late at each step (eager-SGD's recipe). All
methods have the fields, the learning rate and the number of gradients of their
config; nothing is tuned. Prints two tables for each data set, of lockstep and
of asynchronous methods: the final score, the bytes that a worker sends, the
median virtual time until a score is reached, and the virtual time of the whole
run. Writes them into the page between `<!-- stragglers: ... -->` and
`<!-- /stragglers -->`, and into stragglers.json, which also has the staleness.

A lockstep method computes the same on every cluster, so each seed is trained
once, and only its clock is run for the other clusters.
"""

import argparse
from collections.abc import Iterable, Sequence
import itertools
import math
import os
import pathlib
import statistics
from typing import Any, NamedTuple

from benchmarks import marked
from benchmarks.quality import runs
from benchmarks.table import markdown, report
from selsync_jax.commands import compare, trials
from selsync_jax.report import significance
from selsync_jax.runs.history import Trial

ROOT = pathlib.Path(__file__).parents[2]
VARIANTS = ('eager+sync.mode=majority', 'dssp+sync.strict=False')
LATE = 0.3  # Seconds.
NETWORK = {
  'step_seconds': 0.325,  # From eager-SGD's hyperplane regression.
  'bandwidth': '200Mbit',
  'latency': '0.5ms',
}
CLUSTERS = {
  'equal': {'compute': 'constant'},
  'slow': {'compute': 'factors'},  # One worker has half the speed.
  'late': {'compute': 'delays', 'late': 1, 'delay': LATE},
}


class Workload(NamedTuple):
  """A workload to train.

  Attributes:
    workers: N.
    score: the field of a row.
    target: the score to reach.
    sign: 1 if more is better, -1 if less is.
    fields: config fields that make it small and set how often it is scored.
  """

  workers: int
  score: str
  target: float
  sign: int
  fields: dict[str, Any]


WORKLOADS = {
  'digits': Workload(
    *(4, 'validation_accuracy', 0.95, 1),
    {'model.num_filters': 8, 'epochs': 15.0, 'data.backend': 'numpy'},
  ),
  'hyperplane': Workload(
    *(8, 'validation_loss', 0.02, -1),
    {'eval.every_epochs': 0.5, 'data.backend': 'numpy'},
  ),
}


class Outcome(NamedTuple):
  """One run on one cluster.

  Attributes:
    reached: virtual seconds until the target; `None` if never.
    seconds: virtual seconds of the whole run.
    sent: bytes per worker.
    final: the score at the end.
    staleness: the mean staleness.
  """

  reached: float | None
  seconds: float
  sent: float
  final: float
  staleness: float


def grid(
  name: str, cluster: str, methods: Sequence[str], options: argparse.Namespace
) -> list[Trial]:
  """The trials of one workload on one cluster."""
  workload = WORKLOADS[name]
  fields: dict[str, Any] = NETWORK | CLUSTERS[cluster]
  if fields['compute'] == 'factors':
    fields['factors'] = (2.0, *[1.0] * (workload.workers - 1))
  return trials.list_trials(
    f'{ROOT}/configs/{name}.py',
    [
      *(f'--config.virtual_cluster.{k}={v}' for k, v in fields.items()),
      *(f'--config.{k}={v}' for k, v in workload.fields.items()),
      *([f'--config.steps={options.steps}'] if options.steps else []),
    ],
    methods,
    options.work / name / cluster,
    seeds=options.seeds,
    simulate=True,
  )


def virtual_seconds(
  trial: Trial, rows: Sequence[dict[str, Any]]
) -> list[float]:
  """The clock of a trial's cluster, for a lockstep run with these rows."""
  import numpy as np

  from selsync_jax.runs.ledger import REPORTED, Totals
  from selsync_jax.simulate import lockstep
  from selsync_jax.training.settings import check
  from selsync_jax.training.setup import create_setup

  ledger = lockstep.create_ledger(
    create_setup(check(trial.config)),
    Totals(),
    cluster=trial.config.virtual_cluster.to_dict(),
  )
  workers = trial.config.workers
  return [
    ledger.count(
      {
        'relative_change': np.zeros(workers),
        # A message may be as long as the selection at its step.
        **{
          name: np.full(workers, row[name])
          for name in {'synced', *REPORTED} & row.keys()
        },
      }
    )['virtual_seconds']
    for row in rows
  ]


def outcome(trial: Trial, trained: Trial, workload: Workload) -> Outcome:
  """The result of a trial.

  Args:
    trial: the trial on its cluster.
    trained: the run with the gradients; another run for a lockstep method.
    workload: the trained workload.
  """
  from selsync_jax.runs import history

  run = history.read(trained.workdir)
  seconds = [row['virtual_seconds'] for row in run.rows]
  if trained is not trial:
    seconds = virtual_seconds(trial, run.rows)
  field, sign = workload.score, workload.sign
  reached = next(
    (
      at
      for at, row in zip(seconds, run.rows, strict=True)
      if row.get(field) is not None
      and sign * row[field] >= sign * workload.target
    ),
    None,
  )
  return Outcome(
    reached,
    seconds[-1],
    run.outcome['bytes_per_worker'],
    run.outcome[field],
    run.outcome['staleness'],
  )


def measure(
  name: str, methods: Sequence[str], options: argparse.Namespace
) -> dict[str, dict[str, list[Outcome]]]:
  """The results of each seed, by cluster and method; none if it diverged."""
  from selsync_jax.methods import METHODS

  grids = {c: grid(name, c, methods, options) for c in CLUSTERS}
  first = next(iter(grids.values()))
  pairs = {  # Each trial, and the run with its gradients.
    cluster: [
      (trial, base if trial.config.sync.method in METHODS else trial)
      for trial, base in zip(each, first, strict=True)
    ]
    for cluster, each in grids.items()
  }
  wanted = [
    trained
    for each in pairs.values()
    for trial, trained in each
    if trial is trained
  ]
  runs.train_all(wanted, options.jobs)
  found: dict[str, dict[str, list[Outcome]]] = {}
  for cluster, each in pairs.items():
    # The trials are ordered by seed, then by method.
    for method, (trial, trained) in zip(itertools.cycle(methods), each):
      outcomes = found.setdefault(cluster, {}).setdefault(method, [])
      if trained.is_done:
        outcomes.append(outcome(trial, trained, WORKLOADS[name]))
  return found


def median(values: Sequence[float | None]) -> float | None:
  """The median over seeds; a seed that misses the target counts as infinite."""
  middle = statistics.median(math.inf if v is None else v for v in values)
  return middle if math.isfinite(middle) else None


def table(
  found: dict[str, dict[str, list[Outcome]]],
  methods: Iterable[str],
  workload: Workload,
  seeds: int,
  *,
  scored: Sequence[str],
  timed: Sequence[str],
) -> str:
  """The table of some methods, in Markdown.

  Args:
    found: the results by cluster and method.
    methods: the rows.
    workload: the trained workload.
    seeds: the number of seeds of each method.
    scored: the clusters whose scores are shown.
    timed: the clusters whose times are shown.
  """
  score, target = workload.score.split('_')[-1], f'{workload.target:g}'
  head = [
    'method',
    *([score] if len(scored) == 1 else [f'{score}, {c}' for c in scored]),
    'sent, MB',
    *(f'to {target}, {c}' for c in timed),
    *(f'whole run, {c}' for c in timed[1:]),  # Equal workers take as long.
  ]
  lines = [head, ['---', *['---:'] * (len(head) - 1)]]
  for method in methods:
    runs_of = {cluster: found[cluster][method] for cluster in CLUSTERS}
    scores = []
    for each in (runs_of[c] for c in scored):
      text = significance.spread([o.final for o in each], '.4f').text
      text = text.removesuffix(' ± 0.0000')
      lost = f' ({seeds - len(each)} of {seeds} seeds diverged)'
      scores.append(text + lost * (len(each) < seeds) if each else 'diverged')
    sent = [o.sent for o in runs_of['slow']]
    lines.append(
      [
        *(f'`{method}`', *scores),
        format(statistics.fmean(sent) / 1e6, '.3g') if sent else '–',
        *(soonest(runs_of[c]) for c in timed),
        *(mean([o.seconds for o in runs_of[c]]) for c in timed[1:]),
      ]
    )
  return markdown(lines)


def soonest(each: Sequence[Outcome]) -> str:
  """The cell of the median time to the target."""
  if not each:
    return '–'
  reached = median([o.reached for o in each])
  return 'never' if reached is None else f'{reached:.1f}'


def mean(values: Sequence[float]) -> str:
  """The cell of a mean time."""
  return f'{statistics.fmean(values):.1f}' if values else '–'


def between(groups: Iterable[Sequence[Outcome]]) -> str:
  """The range of the mean times of several methods' runs."""
  means = [statistics.fmean(o.seconds for o in each) for each in groups if each]
  return f'{min(means):.1f} to {max(means):.1f} s' if means else 'no time'


def section(
  name: str, found: dict[str, dict[str, list[Outcome]]], seeds: int
) -> str:
  """The page's section about a workload."""
  from selsync_jax.methods import METHODS

  workload, methods = WORKLOADS[name], found['equal']
  locked = [m for m in methods if m.partition('+')[0] in METHODS]
  free = [m for m in methods if m not in locked]
  about = f'Seeds: {seeds}. With equal workers a run takes '
  about += between(methods.values())
  parts = [f'### {name}, {workload.workers} workers\n']
  if locked:
    slow = between(found['slow'][m] for m in locked)
    about += f'; in lockstep with a slow worker, {slow}'
    # A slow worker changes nothing else: each step computes twice as long.
    few = {'scored': ['equal'], 'timed': ['equal', 'late']}
    parts.append(table(found, locked, workload, seeds, **few))
  if free:
    every = {'scored': [*CLUSTERS], 'timed': [*CLUSTERS]}
    parts.append(table(found, free, workload, seeds, **every))
  return '\n'.join([parts[0], f'{about}.\n', *parts[1:]])


def main() -> None:
  parser = runs.parser(__doc__, 'stragglers', 'stragglers')
  parser.add_argument('--workloads', nargs='+', default=list(WORKLOADS))
  parser.add_argument('--methods', nargs='+', help='default: every one')
  parser.add_argument('--steps', type=int, help="default: the config's")
  options = parser.parse_args()
  options.work = options.work.resolve()
  methods = options.methods or [*compare.every_method(simulate=True), *VARIANTS]
  result = {name: measure(name, methods, options) for name in options.workloads}
  text = '\n'.join(
    section(name, found, options.seeds) for name, found in result.items()
  )
  if options.into:
    marked.insert(f'\n{text}\n', options.into, 'stragglers')
  record = {
    'cores': os.cpu_count(),
    'network': NETWORK,
    'targets': {name: WORKLOADS[name].target for name in result},
    'outcomes': {
      name: {
        cluster: {
          label: [o._asdict() for o in each] for label, each in m.items()
        }
        for cluster, m in clusters.items()
      }
      for name, clusters in result.items()
    },
  }
  report(options.out, record, notes=[text])


if __name__ == '__main__':
  main()
