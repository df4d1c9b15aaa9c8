"""Claims of rivals' papers about time, on the virtual clock.

References:
  Li et al., `Taming Unbalanced Training Workloads in Deep Learning with Partial
    Collective Operations`, PPoPP 2020 (eager-SGD).
  Zhao et al., `Dynamic Stale Synchronous Parallel Distributed Training for Deep
    Learning`, ICDCS 2019 (DSSP).
  Yoon and Oh, `MiCRO`, HiPC 2023, and `Preserving Near-Optimal Gradient
    Sparsification Cost for Scalable Distributed Deep Learning`, CCGrid 2024
    (ExDyna).
"""

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.quality.paper.claim import (
  about,
  Arm,
  AS_GOOD,
  BETTER,
  by_seed,
  Claim,
  Range,
  scored,
  Task,
  WORSE,
)
from selsync_jax.runs.history import Run

HYPERPLANE = {200: 1.50, 300: 1.75, 400: 2.01}
"""Speed-up of solo eager-SGD, by the delay in ms."""


class Skewed(NamedTuple):
  """Results in eager-SGD's paper for workers that are all late."""

  words: str
  accuracy: float
  rule: Range
  times: float  # The speed-up.


SKEW = {
  'solo': Skewed('worse than', 58.0, WORSE, 3.15),
  'majority': Skewed('as good as', 90.0, AS_GOOD, 1.29),
}
SMALL = 'model.num_filters=8', 'data.backend=numpy'
SKEWED = Task(
  'skewed',
  'digits.py',
  fields=(
    *SMALL,
    'virtual_cluster.compute=skewed',
    'virtual_cluster.step_seconds=0.01',
  ),
)
PAIR = Task(
  'pair',
  'digits.py',
  fields=(
    *(*SMALL, 'workers=2', 'steps=300', 'eval.every_epochs=1000.0'),
    *('virtual_cluster.compute=factors', 'virtual_cluster.factors=(3.1,1.0)'),
  ),
)
SPARSE = Task(  # BSP's average takes about as long as its step, 0.1 s.
  'sparse', 'digits.py', fields=(*SMALL, 'virtual_cluster.bandwidth=5Mbit')
)


def seconds(run: Run) -> float:
  """Returns the virtual seconds of a whole run."""
  return run.outcome['virtual_seconds']


def sooner(run: Run, other: Run) -> float:
  """Returns how many times as long the other run takes."""
  return seconds(other) / seconds(run)


def selection(run: Run) -> float:
  """Returns the length of the longest message; 1 means the planned length.

  Takes the mean over the second half of the run, after the threshold has
  settled.
  """
  lengths = run.columns['selection']
  return float(lengths[len(lengths) // 2 :].mean())


def _arms(task: Task, *methods: str) -> tuple[Arm, ...]:
  return tuple(Arm(task, method, is_simulated=True) for method in methods)


def eager() -> Iterator[Claim]:
  """Yields claims about eager-SGD."""
  for delay, times in HYPERPLANE.items():
    task = Task(
      f'late-{delay}',
      'hyperplane.py',
      fields=(
        *('data.backend=numpy', 'virtual_cluster.step_seconds=0.325'),
        *(
          'virtual_cluster.compute=delays',
          f'virtual_cluster.delay={delay / 1000}',
        ),
      ),
    )
    yield Claim(
      f'Solo eager-SGD is {times:.2f} times as fast as BSP with one worker '
      f'{delay} ms late',
      f'{times:.2f}',
      by_seed('{} s', seconds, '.1f', sooner, about(times), '.2f'),
      _arms(task, 'eager', 'bsp'),
    )
  for mode, theirs in SKEW.items():
    arms = _arms(SKEWED, f'eager+sync.mode={mode}', 'bsp')
    yield Claim(
      f'{mode.capitalize()} eager-SGD is {theirs.words} BSP with all workers '
      '50 to 400 ms late',
      f'{theirs.accuracy}, 92.6',
      scored(SKEWED, theirs.rule),
      arms,
    )
    yield Claim(
      f'It is {theirs.times} times as fast as BSP',
      f'{theirs.times}',
      by_seed('{} s', seconds, '.1f', sooner, about(theirs.times), '.2f'),
      arms,
    )


def dssp() -> Iterator[Claim]:
  """Yields claims about DSSP, with one worker 3.1 times as slow as the other.

  That factor fits the paper's times for ASP and BSP, 2993 and 6159 s.
  """
  for method, other, words, times in (
    (
      *('ssp', 'bsp'),
      *('SSP, s = 3, is {} as fast as BSP on two unequal GPUs', 6159 / 5678),
    ),
    (
      *('dssp+sync.strict=False', 'ssp'),
      *('DSSP as printed is {} as fast as SSP there', 5678 / 3016),
    ),
    (
      *('dssp', 'ssp'),
      *('DSSP with the bound in its text is {} as fast as SSP', 5678 / 3016),
    ),
  ):
    yield Claim(
      words.format(f'{times:.2f} times'),
      f'{times:.2f}',
      by_seed('{} s', seconds, '.1f', sooner, about(times), '.2f'),
      _arms(PAIR, method, other),
    )


def sparse() -> Iterator[Claim]:
  """Yields claims about MiCRO and ExDyna."""
  for method, name in (('micro', 'MiCRO'), ('exdyna', 'ExDyna')):
    yield Claim(
      f'{name}, once settled, sends what its density says',
      '',
      by_seed('length {}', selection, '.2f', selection, about(1), '.2f'),
      _arms(SPARSE, method),
    )
    for other, words in (('top_k', 'top-k'), ('bsp', 'BSP')):
      yield Claim(
        f'{name} is faster than {words}',
        '',
        by_seed('{} s', seconds, '.1f', sooner, Range(low=1), '.2f'),
        _arms(SPARSE, method, other),
      )
  arms = _arms(SPARSE, 'exdyna', 'micro')
  yield Claim(
    "ExDyna's messages are shorter than MiCRO's",
    '',
    by_seed(
      'length {}',
      selection,
      '.2f',
      lambda a, b: selection(b) - selection(a),
      BETTER,
      '+.2f',
    ),
    arms,
  )
