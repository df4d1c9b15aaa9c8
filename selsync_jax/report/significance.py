"""How sure a mean over seeds is, and whether seeds tell two methods apart."""

from collections.abc import Iterable, Mapping, Sequence
import math
import statistics
from typing import NamedTuple

import numpy as np

from selsync_jax.report.tables import Cell, NONE

FEWEST = 3
"""The fewest seeds that show how far seeds differ; fewer cannot rank."""
ROUNDING = 1e-6
"""The relative error that rounding can cause: a few units of float32."""
_LARGEST = 1e7
"""Larger means are written with an exponent."""
_COUNTS = 'No seed', 'One seed', 'Two seeds'


def deviation(values: Sequence[float]) -> float:
  """Returns the sample standard deviation; NaN if a value is."""
  return float(np.std(values, ddof=1))  # statistics.stdev fails for NaN.


def spread(values: Sequence[float], form: str) -> Cell:
  """Returns the mean, and the sample standard deviation of several values."""
  if not values:
    return NONE
  mean = statistics.fmean(values)
  if abs(mean) >= _LARGEST:
    form = '.4g'
  text = format(mean, form)
  if len(values) > 1:
    text += f' ± {format(deviation(values), form.lstrip("+"))}'
  return Cell(mean, text)


def column_form(groups: Iterable[Sequence[float]], form: str) -> str:
  """Returns the format of a column of means and deviations.

  The decimals show two digits of the smallest deviation that is more than
  rounding. Without one, the format is `form`.

  >>> column_form([[6.94, 7.03, 7.06], [8.0, 8.0, 8.0]], '.4f')
  '.3f'
  >>> column_form([[0.97, 0.98, 0.99]], '.1%'), column_form([[0.97]], '.1%')
  ('.1%', '.1%')
  """
  found = [
    sd
    for values in groups
    if len(values) > 1
    and math.isfinite(sd := deviation(values))
    and sd > ROUNDING * max(map(abs, values))
  ]
  if not found:
    return form
  start, kind = form.partition('.')[0], '%' if form.endswith('%') else 'f'
  decimals = 1 - math.floor(math.log10(min(found))) - 2 * (kind == '%')
  return f'{start}.{max(decimals, 0)}{kind}'


class Difference(NamedTuple):
  """The differences of two methods' scores, seed by seed.

  This is the one place that judges whether seeds tell methods apart. Fewer than
  `FEWEST` seeds do not. Differences that agree to rounding, such as those of
  accuracies with equally many more right answers, do not either: the spread is
  then unknown, not zero.

  Attributes:
    values: the differences by seed, of the seeds that both have.
    resolution: a range of differences that rounding explains.
  """

  values: Mapping[int, float]
  resolution: float

  @property
  def is_equal(self) -> bool:
    """Whether the differences agree to rounding."""
    return bool(np.ptp([*self.values.values()]) <= self.resolution)

  @property
  def bounds(self) -> tuple[float, float]:
    """The 95% confidence interval of the mean; infinite where it is unknown.

    It assumes that the differences are a random sample from a normal
    distribution (Student's t).
    """
    values = list(self.values.values())
    count = len(values)
    if count < FEWEST or self.is_equal:
      return -math.inf, math.inf
    from scipy import stats  # Takes most of a second to import.

    mean = statistics.fmean(values)
    quantile = float(stats.t.ppf(0.975, count - 1))
    margin = quantile * deviation(values) / math.sqrt(count)
    return mean - margin, mean + margin

  @property
  def excludes_zero(self) -> bool:
    """Whether the seeds tell the two methods apart, by their `bounds`."""
    low, high = self.bounds
    return low > 0 or high < 0

  def cell(self, form: str) -> Cell:
    """Returns the mean and its `bounds`, if they are known.

    >>> seeds = {0: 0.01, 1: 0.02, 2: 0.03}
    >>> Difference(seeds, 1e-6).cell('+.2f').text
    '+0.02 [-0.00, +0.04]'
    >>> Difference(dict.fromkeys(seeds, 0.01), 1e-6).cell('+.2f').text
    '+0.01, equal in 3'
    >>> Difference({0: 0.01, 1: 0.02}, 1e-6).cell('+.3f').text
    '+0.015'
    """
    if not self.values:
      return NONE
    mean = statistics.fmean(self.values.values())
    text = f'{mean:{form}}'
    if len(self.values) >= FEWEST:
      low, high = self.bounds
      text += (
        f', equal in {len(self.values)}'
        if self.is_equal
        else f' [{low:{form}}, {high:{form}}]'
      )
    return Cell(mean, text)


def difference(
  scores: Mapping[int, float], others: Mapping[int, float]
) -> Difference:
  """Returns how far scores by seed are above others."""
  shared = sorted(scores.keys() & others.keys())
  every = [abs(each[seed]) for each in (scores, others) for seed in shared]
  largest = max(filter(math.isfinite, every), default=0.0)
  values = {seed: scores[seed] - others[seed] for seed in shared}
  return Difference(values, ROUNDING * largest)


def excess(
  scores: Mapping[int, float], others: Mapping[int, float]
) -> Difference:
  """Returns by what percentage scores by seed are above others."""
  apart = difference(scores, others).values
  values = {k: 100 * v / others[k] for k, v in apart.items() if others[k]}
  return Difference(values, 100 * ROUNDING)


class Contender(NamedTuple):
  """A method in a headline."""

  name: str
  result: str  # Its score and its price.
  cost: float
  scores: Mapping[int, float]  # By seed.


def doubt(best: Contender, others: Sequence[Contender]) -> str:
  """Returns the sentences after a headline: how sure the best is, the cheapest.

  It names the cheapest of the methods that the seeds do not tell from the best
  one. It is empty if the seeds tell all others from it.
  """
  alike = [
    other
    for other in others
    if all(map(math.isfinite, other.scores.values()))  # NaN is not as good.
    and not difference(best.scores, other.scores).excludes_zero
  ]
  if not alike:
    return ''
  if (count := len(best.scores)) < FEWEST:
    text = f'. {_COUNTS[count]} cannot rank methods'
  else:
    names = '; '.join(other.name for other in alike)
    if len(alike) > 3:
      names = f'{len(alike)} others'
    text = f'. Its seeds do not tell it from {names}'
  cheapest = min([best, *alike], key=lambda each: each.cost)
  if cheapest is best:
    return f'{text}. None of these is cheaper'
  return f'{text}. The cheapest of these: {cheapest.name}, {cheapest.result}'
