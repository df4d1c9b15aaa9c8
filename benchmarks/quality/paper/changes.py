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
  'The first quarter of a run has over 0.25 of the synchronizations': (
    'schedule.name=constant+schedule.warmup_epochs=0.0'
  ),
  'The same with a warm-up of 3 epochs of 30': 'schedule.warmup_epochs=3.0',
  'The same with a warm-up of 10 epochs': 'schedule.warmup_epochs=10.0',
}
"""A constant rate, or a cosine after a warm-up, by the text of its claim."""
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
  f'LSSR is the same, within 0.1, for N = {", ".join(map(str, WORKERS))}': (
    'selsync+sync.delta=0.3'
  ),
  'The same with a smoothing of N/100': 'selsync_paper+sync.delta=0.3',
  'The same if half of the workers must raise a flag (ours)': (
    'selsync+sync.delta=0.3+sync.quorum=0.5'
  ),
  'The same with a budget (ours)': 'selsync+sync.delta=None+sync.lssr=0.9',
}
"""The methods that decide when to synchronize, by the text of their claim."""


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
  rates, changes = run.columns['lr'], run.columns['relative_change']
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
    f'LSSR rises with delta: {", ".join(map(str, DELTAS))}',
    '0 is BSP; 1.5 never averages',
    by_seed('LSSR {}', lssr, '.3f', smallest_rise, BETTER, '+.3f'),
    tuple(Arm(DIGITS, f'selsync+sync.delta={d}') for d in DELTAS),
  )
  arms = {
    text: Arm(DIGITS, f'selsync+sync.delta=0.3+{schedule}')
    for text, schedule in SCHEDULES.items()
  }
  for text, arm in arms.items():
    yield Claim(
      text,
      'a figure',
      by_seed('share {}', quarter, '.3f', quarter, Range(low=0.25), '.3f'),
      (arm,),
    )
  constant, *_, slowly = arms.values()
  yield Claim(
    'The first tenth has over 0.1 of them, at a constant rate',
    'a figure',
    by_seed('share {}', tenth, '.3f', tenth, Range(low=0.1), '.3f'),
    (constant,),
  )
  yield Claim(
    'It has more than with a warm-up of 10 epochs (ours)',
    '',
    by_seed(
      'share {}', tenth, '.3f', lambda a, b: tenth(a) - tenth(b), BETTER, '+.3f'
    ),
    (constant, slowly),
  )
  yield Claim(
    'A decay of the learning rate makes the change jump',
    'a figure',
    by_seed('ratio {}', jump, '.2f', jump, Range(low=1), '.2f'),
    (Arm(DIGITS, f'selsync+sync.delta=0.3+{DECAYS}'),),
  )


def claims_of_workers() -> Iterator[Claim]:
  """Yields the claims about a delta and the number of workers."""
  for text, method in RULES.items():
    yield Claim(
      text,
      'N = 16 alone',
      by_seed('LSSR {}', lssr, '.3f', spread_of_lssr, Range(high=0.1), '.3f'),
      tuple(Arm(SMALL_BATCHES, f'{method}+workers={n}') for n in WORKERS),
    )
