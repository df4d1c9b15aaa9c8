"""A claim of a paper, the runs that test it, and the rule that judges it.

A run is scored once on the test split. Nothing is tuned: as in the paper, all
methods on a task have the learning rate of the task's config.
"""

from collections.abc import Callable, Sequence
import math
import pathlib
import statistics
from typing import NamedTuple

from selsync_jax.commands import trials
from selsync_jax.report import significance
from selsync_jax.runs import history
from selsync_jax.runs.history import Run, Trial

CONFIGS = pathlib.Path(__file__).parents[3] / 'configs'
FIRST_SEED = 200  # No other table has these seeds.
EXACT = 1e-12  # Rounding of float64, in numbers of about 1.
MARGIN = 0.01
"""Largest loss that is still as good: in accuracy, or in log perplexity."""


class Task(NamedTuple):
  """A task to train.

  Attributes:
    name: name of the folder of its runs.
    config: a file in configs/, perhaps with a variant.
    metric: the score on the test split by which runs are judged.
    fields: differences to the config file, as `field=value`.
  """

  name: str
  config: str
  metric: str = 'accuracy'
  fields: tuple[str, ...] = ()

  @property
  def form(self) -> str:
    """The format of a score."""
    return '.4g' if self.metric == 'perplexity' else '.4f'

  def score(self, run: Run) -> float:
    """Returns the score on the test split."""
    if self.metric == 'perplexity':  # A perplexity may exceed float32.
      return math.exp(run.outcome['test_loss'])
    return run.outcome[f'test_{self.metric}']

  def gain(self, run: Run, other: Run) -> float:
    """Returns how much better a run is: in accuracy, or log perplexity."""
    own, others = self.score(run), self.score(other)
    if self.metric == 'perplexity':
      return math.log(others / own)
    return own - others


class Arm(NamedTuple):
  """Runs that differ only in their seed; a method as in `compare`."""

  task: Task
  method: str
  is_simulated: bool = False

  def trials(self, seeds: int, work: pathlib.Path) -> list[Trial]:
    """Returns its runs, in a folder of the task."""
    task, fields = self.task, [f'seed={FIRST_SEED}', *self.task.fields]
    if not self.is_simulated:  # A simulation has its own device.
      fields.append('mapper=auto')
    return trials.list_trials(
      f'{CONFIGS}/{task.config}',
      [f'--config.{field}' for field in fields],
      [self.method],
      work / task.name,
      seeds=seeds,
      simulate=self.is_simulated,
    )


class Range(NamedTuple):
  """The rule: a claim holds if its number lies between two bounds.

  It holds if the whole 95% interval over seeds lies between them, and does not
  hold if the whole interval lies outside. It is undecided otherwise, and if the
  seeds show no spread (`significance.Difference`). Exact numbers without spread
  decide, because seeds do not matter to them.
  """

  low: float = -math.inf
  high: float = math.inf

  def verdict(self, numbers: significance.Difference) -> str:
    """Returns the verdict on a number of every seed, in words."""
    least, most = numbers.bounds
    if len(numbers.values) < significance.FEWEST:
      return f'open: fewer than {significance.FEWEST} seeds'
    if numbers.resolution == EXACT and numbers.is_equal:
      least = most = statistics.fmean(numbers.values.values())
    if self.low < least and most < self.high:
      return 'holds'
    if most <= self.low or least >= self.high:
      return 'does not hold'
    return 'open'


BETTER = Range(low=0)
WORSE = Range(high=0)
AS_GOOD = Range(low=-MARGIN)


def about(number: float) -> Range:
  """Returns the range within a tenth of a number above 0."""
  return Range(0.9 * number, 1.1 * number)


class Finding(NamedTuple):
  """The result for a claim on this machine.

  Attributes:
    ours: our measured or computed values, in the order of the arms.
    verdict: whether the claim holds, in words.
    judged: the mean and the interval of the numbers.
    numbers: the numbers that are judged, one for each seed or repeat.
  """

  ours: str
  verdict: str
  judged: str = ''
  numbers: Sequence[float] = ()


Judge = Callable[[Sequence[Sequence[Run]]], Finding]
"""Takes the runs of each arm, ordered by seed, to a finding."""


class Claim(NamedTuple):
  """A claim of a paper.

  Attributes:
    text: the claim.
    theirs: the paper's numbers.
    judge: returns the finding from the runs of the arms.
    arms: the runs to train.
    task: name of the task, for a claim about several of them.
  """

  text: str
  theirs: str
  judge: Judge
  arms: tuple[Arm, ...] = ()
  task: str = ''

  def finding(self, seeds: int, work: pathlib.Path) -> Finding:
    """Returns the finding of runs that have been trained."""
    trials = [arm.trials(seeds, work) for arm in self.arms]
    if diverged := [t.label for each in trials for t in each if not t.is_done]:
      return Finding('', f'open: a run of {diverged[0]} diverged')
    return self.judge(
      [[history.read(t.workdir, t.label) for t in each] for each in trials]
    )


def by_seed(
  what: str,
  shown: Callable[[Run], float],
  form: str,
  number: Callable[..., float],
  rule: Range,
  signed: str,
  resolution: float = EXACT,
) -> Judge:
  """Returns a judge of a number that every seed has.

  Args:
    what: the quantity that the table shows, with {} for the means of the arms.
    shown: takes a run to that quantity.
    form: format of that quantity.
    number: takes a seed's runs, in the order of the arms, to the judged number.
    rule: the range in which the claim holds.
    signed: format of the judged number.
    resolution: range of numbers that is rounding; `EXACT` for numbers such as
      counts of steps and times on the virtual clock.
  """

  def judge(groups):
    parts = [mean([*map(shown, runs)], form) for runs in groups]
    numbers = [number(*runs) for runs in zip(*groups, strict=True)]
    return found(what, parts, numbers, rule, signed, resolution)

  return judge


def scored(
  task: Task, rule: Range, number: Callable[..., float] | None = None
) -> Judge:
  """Returns a judge of scores on the test split.

  Args:
    task: the trained task.
    rule: the range of gains in which the claim holds.
    number: takes the runs to the gain; by default, the first of two's gain.
  """
  return by_seed(
    f'{task.metric} {{}}',
    task.score,
    task.form,
    number or task.gain,
    rule,
    '+.4f',
    significance.ROUNDING,
  )


def mean(values: Sequence[float], form: str) -> str:
  """Returns the mean of several values."""
  return significance.spread(values, form).text.partition(' ')[0]


def found(
  what: str,
  parts: Sequence[str],
  numbers: Sequence[float],
  rule: Range,
  form: str,
  resolution: float = EXACT,
) -> Finding:
  """Returns the finding for judged numbers and the value to show."""
  judged = significance.Difference(dict(enumerate(numbers)), resolution)
  return Finding(
    what.format(', '.join(parts)),
    rule.verdict(judged),
    judged.cell(form).text,
    numbers,
  )
