"""The conclusion of a comparison: the best method, and which may be as good.

A method's interval is its mean over seeds, plus or minus the sample standard
deviation. These seeds do not separate two methods whose intervals overlap.
"""

from collections.abc import Sequence
import statistics

from selsync_jax.report import headline
from selsync_jax.report.comparison_table import deviation
from selsync_jax.report.entries import Entry
from selsync_jax.report.entries import metric_of


def overlaps(entries: Sequence[Entry]) -> dict[str, list[str]]:
  """Returns, by label, the labels of the methods whose intervals overlap it.

  A method with one seed has no interval, and is left out.
  """
  field = f'validation_{metric_of(entries)}'
  intervals = {}
  for entry in entries:
    scores = list(entry.values(field).values())
    if len(scores) > 1:
      mean, margin = statistics.fmean(scores), deviation(scores)
      intervals[entry.label] = mean - margin, mean + margin
  return {
    label: [
      other
      for other, (other_low, other_high) in intervals.items()
      if other != label and other_low <= high and low <= other_high
    ]
    for label, (low, high) in intervals.items()
  }


def sentence(entries: Sequence[Entry]) -> str:
  """Describes the best method on validation, its cost, and its overlaps."""
  metric = metric_of(entries)
  best = max(entries, key=lambda entry: entry.rank)
  scores = list(best.values(f'validation_{metric}').values())
  run = next(iter(best.runs.values()))
  return (
    f'Best of {len(entries)}: {best.label}, '
    f'{headline.quality(run, metric, scores)} '
    f'{headline.price(best.share_of_bsp)}'
    f'{_doubt(best.label, overlaps(entries))}'
  )


def _doubt(best: str, overlapping: dict[str, list[str]]) -> str:
  """Describes what casts doubt on the best method, if anything."""
  if best not in overlapping:
    return '; one seed, so the spread is not known'
  others = overlapping[best]
  if not others:
    return ''
  if len(others) > 3:
    return f'; the intervals of {len(others)} others overlap its own'
  return f'; overlaps with {"; ".join(others)}'
