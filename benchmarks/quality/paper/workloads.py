"""Scaled-down workloads of the paper: Table I, and its comparisons of parts.

Each workload has a smoke variant: the paper's kind of network with few filters,
the paper's optimizer, four workers, and digits or bytes of Python's library.
Digits with a small network also stand for ResNet101, because they are quicker.
"""

from collections.abc import Callable, Iterator, Mapping
import itertools
import math
import re
import statistics

from benchmarks.quality.paper import table_one
from benchmarks.quality.paper.claim import (
  Arm,
  AS_GOOD,
  BETTER,
  by_seed,
  Claim,
  MARGIN,
  Range,
  scored,
  Task,
  WORSE,
)
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
ABLATION = 'selsync+sync.delta=0.25'
GRADIENTS = f'{ABLATION}+sync.aggregate=grads'
SLOW = (
  'virtual_cluster.compute=factors+virtual_cluster.factors=(3.0,1.0,1.0,1.0)'
)
"""The others lead by 100 steps at step 125 of 300, or by 200 at step 250."""
PARAMETERS = {  # Its averages of parameters, and of gradients.
  'ResNet101': ('98.52 against 96.8', BETTER),
  'VGG11': ('91.42 against 90.86', BETTER),
  'AlexNet': ('equal', AS_GOOD),
  'Transformer': ('both 90.0; gradients need 130% more steps', AS_GOOD),
}
ROTATION = {  # SelDP, and DefDP.
  'ResNet101': '97.6 against 96.8',
  'VGG11': '90.86 against 64.1',
  'AlexNet': '81.1 against 61.2',
  'Transformer': '92.6 against 94.91',
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
    f'{name}{words} is {"worse than" if is_worse else "as good as"} BSP with '
    f'{workload} (Table I)',
    f'{row.score} against {table_one.BSP[workload].score}',
    scored(task, WORSE if is_worse else AS_GOOD),
    (arm, Arm(task, 'bsp')),
  )


def rounds() -> Iterator[Claim]:
  """Yields Table I's claims about FedAvg, with the paper's steps for a round.

  An epoch of the digits has 10 steps; an epoch of CIFAR had 195.
  """
  for name, method in table_one.METHODS.items():
    if name.startswith('FedAvg'):
      fraction, epochs = re.findall(r'=([\d.]+)', method)
      steps = round(195 * float(epochs))
      fields = f'sync.fraction={fraction}+sync.epochs={steps / 10}'
      arm = Arm(DIGITS, f'fedavg+{fields}')
      yield beside_bsp(name, 'ResNet101', arm, f', {steps} steps to a round,')


def bounds(workload: str, arms: Mapping[str, Arm], words: str = '') -> Claim:
  """Returns the claim that the smaller bound of SSP is better.

  Args:
    workload: the workload in Table I.
    arms: the runs of each row of SSP, the smaller bound first.
    words: remark on the difference to the row.
  """
  task = next(iter(arms.values())).task
  return Claim(
    f'SSP with s = 100 is better than with s = 200{words} with {workload} '
    '(Table I)',
    ', '.join(f'{table_one.TABLE[workload][name].score}' for name in arms),
    scored(task, BETTER),
    tuple(arms.values()),
  )


def far() -> Iterator[Claim]:
  """Yields Table I's claims about SSP, where leads reach its bounds."""
  arms = {
    f'SSP, s = {s}': Arm(
      DIGITS, f'ssp+sync.staleness={s}+{SLOW}', is_simulated=True
    )
    for s in (100, 200)
  }
  words = ', one worker 3 times as slow,'
  for name, arm in arms.items():
    yield beside_bsp(name, 'ResNet101', arm, words)
  yield bounds('ResNet101', arms, words)


def claims(task: Task, workload: str) -> Iterator[Claim]:
  """Yields the claims of the paper about a workload, for a task."""
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
  ssp, selsync = (
    {name: arm for name, arm in arms.items() if name.startswith(method)}
    for method in ('SSP', 'SelSync')
  )
  yield bounds(workload, ssp)
  for name in selsync if costs else ():
    average = statistics.median(costs)
    yield Claim(
      f'{name} is as good as BSP sooner with {workload}, where an average '
      f'costs {average:.1f} steps (Table I)',
      f'{table_one.TABLE[workload][name].speedup} times',
      by_seed('LSSR', lssr, '.3f', speedup(task, average), Range(low=1), '.2f'),
      (bsp, arms[name]),
    )
  yield Claim(
    f'LSSR rises with delta with {workload} (Table I, deltas 0.3 and 0.5)',
    ', '.join(f'{table_one.TABLE[workload][n].lssr}' for n in selsync),
    by_seed('LSSR', lssr, '.3f', smallest_rise, BETTER, '+.3f'),
    tuple(selsync.values()),
  )
  theirs, rule = PARAMETERS[workload]
  words = 'better than' if rule is BETTER else 'as good as'
  yield Claim(
    f'Averages of parameters are {words} averages of gradients with '
    f'{workload}, delta 0.25',
    theirs,
    scored(task, rule),
    (Arm(task, ABLATION), Arm(task, GRADIENTS)),
  )
  yield Claim(
    f'SelDP is better than DefDP with {workload}, delta 0.25, averages of '
    'gradients',
    ROTATION[workload],
    scored(task, BETTER),
    (Arm(task, GRADIENTS), Arm(task, f'{GRADIENTS}+data.partition=defdp')),
  )
