"""Scaled-down workloads of the paper: Table I, and its comparisons of parts.

Each workload has a smoke variant: the paper's kind of network with few filters,
the paper's optimizer, four workers, and digits or bytes of Python's library.
Digits with a small network also stand for ResNet101, because they are quicker.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import itertools
import math
import pathlib
import re
import statistics
from typing import NamedTuple

from benchmarks.quality.paper import table_one
from benchmarks.quality.paper.claim import (
  Arm,
  AS_GOOD,
  BETTER,
  by_seed,
  Claim,
  Finding,
  MARGIN,
  mean,
  Range,
  scored,
  Task,
  WORSE,
)
from selsync_jax.runs import history
from selsync_jax.runs.history import Run

DIGITS = Task(
  'digits', 'digits.py', fields=('model.num_filters=8', 'data.backend=numpy')
)
TASKS = {
  'digits': (DIGITS, 'ResNet101'),
  **{
    name: (Task(name, f'{config}.py:smoke', metric), workload)
    for name, config, metric, workload in (
      ('resnet', 'cifar10_resnet101', 'accuracy', 'ResNet101'),
      ('vgg', 'cifar100_vgg11', 'accuracy', 'VGG11'),
      ('alexnet', 'imagenet_alexnet', 'accuracy', 'AlexNet'),
      ('transformer', 'wikitext103_transformer', 'perplexity', 'Transformer'),
    )
  },
}
SELSYNC = 'SelSync, delta 0.3', 'SelSync, delta 0.5'  # In Table I.
ABLATION = 'selsync+sync.delta=0.25'
GRADIENTS = f'{ABLATION}+sync.aggregate=grads'
UNROTATED = f'{GRADIENTS}+data.partition=defdp'
SLOW = (
  'virtual_cluster.compute=factors+virtual_cluster.factors=(3.0,1.0,1.0,1.0)'
)
"""The others lead by 100 steps at step 125 of 300, or by 200 at step 250."""
PARAMETERS = {  # Its averages of parameters, and of gradients.
  'ResNet101': ('98.52, 96.8', BETTER),
  'VGG11': ('91.42, 90.86', BETTER),
  'AlexNet': ('equal', AS_GOOD),
  'Transformer': ('90.0, 90.0', AS_GOOD),
}
ROTATION = {  # SelDP, and DefDP.
  'ResNet101': '97.6, 96.8',
  'VGG11': '90.86, 64.1',
  'AlexNet': '81.1, 61.2',
  'Transformer': '92.6, 94.91',
}


def lssr(run: Run) -> float:
  """Returns the share of local steps."""
  return run.outcome['lssr']


def smallest_rise(*runs: Run) -> float:
  """Returns the smallest increase of the LSSR from one run to the next."""
  return min(lssr(b) - lssr(a) for a, b in itertools.pairwise(runs))


def steps_until(run: Run, score: str, target: float, average: float) -> float:
  """Returns the cost of a run until a target, in local steps.

  The parameters that reach the target are an average, whose cost counts.

  Args:
    run: rows of the run.
    score: field of a row to read.
    target: least value of that field to reach, or the most for a perplexity.
    average: the cost of an average, in local steps.
  """
  sign = -1 if score.endswith('perplexity') else 1
  count = 0
  for row in run.rows:
    count += row['synced']
    if score in row and sign * row[score] >= sign * target:
      return row['step'] + average * (count + (not row['synced']))
  return math.inf


def speedup(task: Task, average: float) -> Callable[[Run, Run], float]:
  """Returns the speed-up of a run until it is as good on validation as BSP.

  As good means within `MARGIN` of BSP's last score.
  """
  score = f'validation_{task.metric}'

  def number(bsp: Run, run: Run) -> float:
    last = bsp.outcome[score]
    target = last * (1 + MARGIN) if 'perplexity' in score else last - MARGIN
    cost = (steps_until(r, score, target, average) for r in (bsp, run))
    return next(cost) / next(cost)

  return number


def beside_bsp(name: str, workload: str, arm: Arm, words: str = '') -> Claim:
  """Returns the claim of a row of Table I about a method's score against BSP's.

  Args:
    name: name of the row.
    workload: the workload in Table I.
    arm: the runs to train.
    words: remark on the difference between these runs and the row.
  """
  row, task = table_one.TABLE[workload][name], arm.task
  is_worse = row.gain / 100 < -MARGIN
  return Claim(
    f'{name}{words} is {"worse than" if is_worse else "as good as"} BSP',
    f'{row.score}, {table_one.BSP[workload].score}',
    scored(task, WORSE if is_worse else AS_GOOD),
    (arm, Arm(task, 'bsp')),
    task.name,
  )


def settings() -> Iterator[Claim]:
  """Yields Table I's claims about FedAvg and SSP, in settings nearer to it.

  FedAvg has the paper's steps for a round: an epoch of the digits has 10 steps,
  an epoch of CIFAR had 195. With a slow worker, leads reach SSP's bounds.
  """
  for name, method in table_one.METHODS.items():
    if name.startswith('FedAvg'):
      fraction, epochs = re.findall(r'=([\d.]+)', method)
      steps = round(195 * float(epochs))
      fields = f'sync.fraction={fraction}+sync.epochs={steps / 10}'
      arm = Arm(DIGITS, f'fedavg+{fields}')
      yield beside_bsp(name, 'ResNet101', arm, f', {steps} steps to a round,')
  arms = {
    f'SSP, s = {s}': Arm(
      DIGITS, f'ssp+sync.staleness={s}+{SLOW}', is_simulated=True
    )
    for s in (100, 200)
  }
  for name, arm in arms.items():
    words = ', one worker 3 times as slow,'
    yield beside_bsp(name, 'ResNet101', arm, words)
  rows = table_one.TABLE['ResNet101']
  yield Claim(
    'There, s = 100 is better than s = 200',
    ', '.join(f'{rows[name].score}' for name in arms),
    scored(DIGITS, BETTER),
    tuple(arms.values()),
  )


def claims() -> Iterator[Claim]:
  """Yields the claims of the paper about its workloads, for every task."""
  for task, workload in TASKS.values():
    yield from _claims(task, workload)


def _claims(task: Task, workload: str) -> Iterator[Claim]:
  bsp = Arm(task, 'bsp')
  arms = {
    name: Arm(task, method, is_simulated=method.startswith('ssp'))
    for name, method in table_one.METHODS.items()
  }
  for name, arm in arms.items():
    yield beside_bsp(name, workload, arm)
  costs = [
    r
    for method in table_one.timed(workload)
    if (r := table_one.cost(workload, method)) > 0
  ]
  selsync = {name: arms[name] for name in SELSYNC}
  for name in selsync if costs else ():
    average = statistics.median(costs)
    yield Claim(
      f'{name} is as good as BSP sooner',
      f'{table_one.TABLE[workload][name].speedup}',
      by_seed(
        *('LSSR {}', lssr, '.3f'),
        *(speedup(task, average), Range(low=1), '.2f'),
      ),
      (bsp, arms[name]),
      task.name,
    )
  yield Claim(
    'LSSR rises from delta 0.3 to 0.5',
    _lssr_in_table(workload),
    by_seed('LSSR {}', lssr, '.3f', smallest_rise, BETTER, '+.3f'),
    tuple(selsync.values()),
    task.name,
  )
  theirs, rule = PARAMETERS[workload]
  words = 'better than' if rule is BETTER else 'as good as'
  yield Claim(
    f'Averages of parameters are {words} averages of gradients',
    theirs,
    scored(task, rule),
    tuple(Arm(task, method) for method in (ABLATION, GRADIENTS)),
    task.name,
  )
  yield Claim(
    'SelDP is better than DefDP',
    ROTATION[workload],
    scored(task, BETTER),
    tuple(Arm(task, method) for method in (GRADIENTS, UNROTATED)),
    task.name,
  )


def _lssr_in_table(workload: str) -> str:
  rows = table_one.TABLE[workload]
  return ', '.join(f'{rows[name].lssr}' for name in SELSYNC)


class Row(NamedTuple):
  """A row of the table of scores.

  Attributes:
    text: first cell.
    theirs: the paper's numbers, by workload.
    methods: the methods whose means it shows.
    is_lssr: whether it shows the LSSR in place of the score.
  """

  text: str
  theirs: Mapping[str, str]
  methods: Sequence[str]
  is_lssr: bool = False


ROWS = [
  Row('BSP', {w: f'{row.score}' for w, row in table_one.BSP.items()}, ['bsp']),
  *(
    Row(
      name,
      {w: f'{rows[name].score}' for w, rows in table_one.TABLE.items()},
      [method],
    )
    for name, method in table_one.METHODS.items()
  ),
  Row(
    'LSSR, delta 0.3 and 0.5',
    {workload: _lssr_in_table(workload) for workload in table_one.TABLE},
    [table_one.METHODS[name] for name in SELSYNC],
    is_lssr=True,
  ),
  Row(
    'Averages of parameters, of gradients',
    {workload: theirs for workload, (theirs, _) in PARAMETERS.items()},
    [ABLATION, GRADIENTS],
  ),
  Row('SelDP, DefDP', ROTATION, [GRADIENTS, UNROTATED]),
]


def _mean(arm: Arm, is_lssr: bool, seeds: int, work: pathlib.Path) -> str:
  trials = arm.trials(seeds, work)
  if not all(trial.is_done for trial in trials):
    return 'diverged'
  found = [history.read(trial.workdir, trial.label) for trial in trials]
  shown, form = (lssr, '.3f') if is_lssr else (arm.task.score, arm.task.form)
  return mean([*map(shown, found)], form)


def score_lines(seeds: int, work: pathlib.Path) -> list[list[str]]:
  """Returns the table of mean scores, of runs that have been trained.

  The paper's numbers stand before the first task of each workload.
  """
  columns = [['method', *(row.text for row in ROWS)]]
  workloads = set()
  for name, (task, workload) in TASKS.items():
    if workload not in workloads:
      theirs = (row.theirs[workload] for row in ROWS)
      columns.append([f'{workload}, paper', *theirs])
      workloads.add(workload)
    columns.append([name])
    for row in ROWS:
      arms = (Arm(task, m, m.startswith('ssp')) for m in row.methods)
      means = (_mean(arm, row.is_lssr, seeds, work) for arm in arms)
      columns[-1].append(', '.join(means))
  return [[*line] for line in zip(*columns, strict=True)]


def verdict_lines(claims: Mapping[Claim, Finding]) -> list[list[str]]:
  """Returns the table of verdicts: a row for each claim, a column per task."""
  cells = {
    (claim.text, claim.task): ': '.join(
      filter(None, (found.verdict, found.judged))
    )
    for claim, found in claims.items()
  }
  # Claims about the same method stand together.
  subjects = {text: re.split(' is | are ', text)[0] for text, _ in cells}
  order = [*dict.fromkeys(subjects.values())]
  texts = sorted(subjects, key=lambda text: order.index(subjects[text]))
  return [
    ['claim', *TASKS],
    *([text, *(cells.get((text, t), '') for t in TASKS)] for text in texts),
  ]
