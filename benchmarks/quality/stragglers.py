"""Which method for which cluster: every method on three virtual clusters.

  python -m benchmarks.quality.stragglers --into=docs/stragglers.md

Trains digits and hyperplane with every built-in method, lockstep and
asynchronous, with three seeds, on three clusters: all workers equal, one worker
at half speed, and a random worker late at each step (eager-SGD's recipe). All
methods have the fields, the learning rate and the number of gradients of their
config; nothing is tuned. Prints one table for each data set and cluster: the
median virtual time until a score is reached and of the whole run, the bytes
that a worker sends, the final score, and the mean staleness. Writes them into
the page between `<!-- stragglers: ... -->` and `<!-- /stragglers -->`, and into
stragglers.json.

A lockstep method computes the same on every cluster, so each seed is trained
once, and only its clock is run for the other clusters.
"""

import argparse
from collections.abc import Sequence
import math
import os
import pathlib
import statistics
from typing import Any, NamedTuple

from benchmarks.quality import runs
from benchmarks.table import markdown, report
from selsync_jax.commands import compare, trials
from selsync_jax.report import marked
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
  'equal workers': {'compute': 'constant'},
  'one worker at half speed': {'compute': 'factors'},
  f'a random worker {1e3 * LATE:.0f} ms late at each step': {
    'compute': 'delays',
    'late': 1,
    'delay': LATE,
  },
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
    options.work / name / cluster.replace(' ', '-'),
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
    for trial, trained in each:
      outcomes = found.setdefault(cluster, {}).setdefault(trial.label, [])
      if trained.is_done:
        outcomes.append(outcome(trial, trained, WORKLOADS[name]))
  return found


def median(values: Sequence[float | None]) -> float | None:
  """The median over seeds; a seed that misses the target counts as infinite."""
  middle = statistics.median(math.inf if v is None else v for v in values)
  return middle if math.isfinite(middle) else None


def table(
  outcomes: dict[str, list[Outcome]], workload: Workload, seeds: int
) -> str:
  """The table of one cluster, in Markdown; each method has `seeds` seeds."""
  from selsync_jax.report import facts

  score = workload.score.replace('_', ' ')
  head = [
    *('method', score, f'virtual seconds to {score} {workload.target:g}'),
    *('of the whole run', 'sent per worker', 'staleness'),
  ]
  lines = [head, ['---', *['---:'] * (len(head) - 1)]]
  for label, each in outcomes.items():
    if not each:
      lines.append([label, 'diverged', *['–'] * (len(head) - 2)])
      continue
    if lost := seeds - len(each):
      label += f' ({lost} of {seeds} seeds diverged)'
    reached = median([o.reached for o in each])
    seconds, sent, staleness = (
      statistics.fmean(getattr(o, field) for o in each)
      for field in ('seconds', 'sent', 'staleness')
    )
    lines.append(
      [
        label,
        facts.spread([o.final for o in each], '.4f').text,
        'never' if reached is None else f'{reached:.1f}',
        f'{seconds:.1f}',
        facts.size(sent),
        f'{staleness:.2f}',
      ]
    )
  return markdown(lines)


def main() -> None:
  parser = runs.parser(__doc__, 'stragglers', 'stragglers')
  parser.add_argument('--workloads', nargs='+', default=list(WORKLOADS))
  parser.add_argument('--methods', nargs='+', help='default: every one')
  parser.add_argument('--steps', type=int, help="default: the config's")
  options = parser.parse_args()
  options.work = options.work.resolve()
  methods = options.methods or [*compare.every_method(simulate=True), *VARIANTS]
  result = {name: measure(name, methods, options) for name in options.workloads}
  text = f'Seeds of each method: {options.seeds}.\n\n'
  text += ''.join(
    f'### {name}, {WORKLOADS[name].workers} workers, {cluster}\n\n'
    f'{table(outcomes, WORKLOADS[name], options.seeds)}\n'
    for name, clusters in result.items()
    for cluster, outcomes in clusters.items()
  )
  if options.into:
    marked.insert(f'\n{text}', options.into, 'stragglers')
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
