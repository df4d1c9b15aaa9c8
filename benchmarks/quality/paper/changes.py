"""Where SelSync synchronizes: over delta, over a run, and over workers."""

from collections.abc import Iterator
import functools
import statistics

from benchmarks.quality.paper.claim import (
  Arm,
  BETTER,
  by_seed,
  Claim,
  Range,
  Task,
)
from benchmarks.quality.paper.workloads import DIGITS, lssr, smallest_rise
from selsync_jax.runs.history import Run

DELTAS = 0, 0.1, 0.2, 0.3, 0.5, 1, 1000
SCHEDULES = {
  'constant': 'schedule.name=constant+schedule.warmup_epochs=0.0',
  'a warm-up of 3 epochs of 30, then a cosine': 'schedule.warmup_epochs=3.0',
  'a warm-up of 10 epochs, then a cosine': 'schedule.warmup_epochs=10.0',
}
DECAYS = (
  'schedule.name=milestones+schedule.milestones=(15.0,22.0)'
  '+schedule.factor=0.1+schedule.warmup_epochs=0.0'
)
WINDOW = 10  # Steps before and after a decay.
WORKERS = 2, 4, 16, 64
SMALL_BATCHES = Task(
  'workers',
  'digits.py',
  fields=(
    *('model.num_filters=8', 'data.backend=numpy'),
    *('batch_size=8', 'steps=150', 'eval.every_epochs=1000.0'),
    # An epoch has fewer steps for more workers, so the rate is constant.
    *('schedule.name=constant', 'schedule.warmup_epochs=0.0'),
  ),
)
RULES = {
  'One flag is enough': 'selsync+sync.delta=0.3',
  'The same, smoothed by N/100': 'selsync_paper+sync.delta=0.3',
  'Half of the workers must raise a flag, ours': (
    'selsync+sync.delta=0.3+sync.quorum=0.5'
  ),
  'A budget moves delta, ours': 'selsync+sync.delta=None+sync.lssr=0.9',
}


def early(run: Run, parts: int) -> float:
  """Returns the share of the synchronizations in the first parts of a run."""
  synced = [row['synced'] for row in run.rows]
  return sum(synced[: len(synced) // parts]) / sum(synced)


quarter = functools.partial(early, parts=4)
tenth = functools.partial(early, parts=10)


def jump(run: Run) -> float:
  """Returns the changes after a decay of the rate, relative to before.

  A change is the largest of any worker, averaged over `WINDOW` steps and the
  decays.
  """
  rates, changes = run.column('lr'), run.column('relative_change')
  decays = [i for i in range(1, len(rates)) if rates[i] < 0.5 * rates[i - 1]]
  return statistics.fmean(
    changes[i : i + WINDOW].mean() / changes[i - WINDOW : i].mean()
    for i in decays
  )


def spread_of_lssr(*runs: Run) -> float:
  """Returns the range of the LSSR over runs."""
  shares = [lssr(run) for run in runs]
  return max(shares) - min(shares)


def claims() -> Iterator[Claim]:
  """Yields the claims about delta and about the time of synchronizations."""
  yield Claim(
    'Delta goes from BSP to local SGD: LSSR rises with it',
    '0 is BSP; at the largest change of a run, 1.5 with ResNet101, none',
    by_seed('LSSR', lssr, '.3f', smallest_rise, BETTER, '+.3f'),
    tuple(Arm(DIGITS, f'selsync+sync.delta={d}') for d in DELTAS),
  )
  arms = {
    words: Arm(DIGITS, f'selsync+sync.delta=0.3+{schedule}')
    for words, schedule in SCHEDULES.items()
  }
  for words, arm in arms.items():
    yield Claim(
      'Gradients change most early: more than a quarter of the '
      f'synchronizations are in the first quarter. The rate: {words}',
      'a figure alone',
      by_seed('share', quarter, '.3f', quarter, Range(low=0.25), '.3f'),
      (arm,),
    )
  constant, *_, slowly = arms.values()
  yield Claim(
    'More than a tenth of them are in the first tenth. The rate: constant',
    'a figure alone',
    by_seed('share', tenth, '.3f', tenth, Range(low=0.1), '.3f'),
    (constant,),
  )
  yield Claim(
    'The first tenth has fewer of them if the rate is still warming up (ours)',
    'not tested',
    by_seed(
      'share', tenth, '.3f', lambda a, b: tenth(a) - tenth(b), BETTER, '+.3f'
    ),
    (constant, slowly),
  )
  yield Claim(
    'A decay of the learning rate makes the change jump',
    'a figure alone',
    by_seed('ratio', jump, '.2f', jump, Range(low=1), '.2f'),
    (Arm(DIGITS, f'selsync+sync.delta=0.3+{DECAYS}'),),
  )


def claims_of_workers() -> Iterator[Claim]:
  """Yields the claims about a delta and the number of workers."""
  for words, method in RULES.items():
    yield Claim(
      f'{words}: LSSR is the same, within 0.1, for any N (Algorithm 1)',
      'N = 16 alone',
      by_seed('LSSR', lssr, '.3f', spread_of_lssr, Range(high=0.1), '.3f'),
      tuple(Arm(SMALL_BATCHES, f'{method}+workers={n}') for n in WORKERS),
    )
