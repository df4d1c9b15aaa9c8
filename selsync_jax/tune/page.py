"""The page of a search: its recipe next to BSP, and its trials."""

from collections.abc import Sequence
import os
import pathlib
import statistics
from typing import NamedTuple

from selsync_jax.report import facts, page, significance, tables
from selsync_jax.report.tables import Cell, NONE
from selsync_jax.tune.objective import Objective
from selsync_jax.tune.search import Result

NAME = 'tune'
FINALS = 'With new seeds, on the validation split that chose'
TRIALS = 'trials, the best first'
_SHOWN = 10  # Trials in the table that are not folded away.


class Final(NamedTuple):
  """A recipe that was trained with several seeds."""

  name: str
  label: str
  seeds: Sequence[Result]

  @property
  def title(self) -> str:
    """The name, and the method with its settings."""
    return f'{self.name}: {self.label}'

  def mean(self, cost: str) -> float:
    """Returns the mean of a field of `Point` over the seeds that have one."""
    points = (run.point for run in self.seeds if run.value is not None)
    return statistics.fmean(getattr(point, cost) for point in points)

  @property
  def reached(self) -> dict[int, float]:
    """The values of the seeds that did not miss, by their index."""
    every = enumerate(self.seeds)
    return {i: run.value for i, run in every if run.value is not None}

  def cell(self, form: str) -> Cell:
    """Returns the mean and the spread over seeds, and how many missed."""
    mean, text = significance.spread(list(self.reached.values()), form)
    if missed := len(self.seeds) - len(self.reached):
      text += f', {missed} of {len(self.seeds)} never'
    return Cell(mean, text)


class Outcome(NamedTuple):
  """The results of a search."""

  objective: Objective
  finals: Sequence[Final]  # The recipe, tuned BSP, and others.
  tried: Sequence[Result]  # The trials, the best first.

  @property
  def form(self) -> str:
    """The format of the values of all finals."""
    groups = [list(final.reached.values()) for final in self.finals]
    return significance.column_form(groups, '.4g')

  @property
  def verdict(self) -> str:
    """The recipe beside tuned BSP, and how sure that is.

    It also names the cheapest method that the seeds do not tell from the
    recipe.
    """
    recipe, bsp, *_ = self.finals
    ours, theirs = (each.cell(self.form) for each in (recipe, bsp))
    line = f'{self.objective.words}: {ours.text} by {recipe.label}; '
    line += f'{theirs.text} by tuned BSP'
    every = all(len(each.reached) == len(each.seeds) for each in (recipe, bsp))
    is_time = self.objective.target is not None
    if is_time and every and recipe.label != bsp.label:
      line += f', {theirs.value / ours.value:.2g} times as long'

    def contender(final):
      sent = final.mean('sent')
      text = f'{final.cell(self.form).text} for {facts.size(sent)} per worker'
      return significance.Contender(final.name, text, sent, final.reached)

    others = {
      final.label: contender(final)
      for final in self.finals
      if final.label != recipe.label
      and len(final.reached) >= max(len(recipe.reached), 1)
    }
    if recipe.reached:
      line += significance.doubt(contender(recipe), [*others.values()])
    return line

  def write(self, out: pathlib.Path, subtitle: str) -> pathlib.Path:
    """Writes the page; returns its path."""
    _, bsp, *_ = self.finals
    words = self.objective.words

    def row(final):
      apart = significance.excess(final.reached, bsp.reached)
      above = Cell(None, '') if final is bsp else apart.cell('+z.2f')
      cells = {words: final.cell(self.form), 'above tuned BSP, %': above}
      for cost, text in (
        ('score', '{:.4g}'.format),
        ('sent', facts.size),
        ('seconds', '{:.4g}'.format),
      ):
        mean = final.mean(cost) if final.reached else None
        cells[cost] = NONE if mean is None else Cell(mean, text(mean))
      return cells

    trials = [
      (
        f'{rank}. {each.label}',
        {
          words: _value(each),
          '': page.link(os.path.relpath(each.run.workdir, out), 'run'),
        },
      )
      for rank, each in enumerate(self.tried, 1)
    ]
    more = f'The other {len(trials) - _SHOWN}'
    shown, folded = dict(trials[:_SHOWN]), dict(trials[_SHOWN:])
    finals = {final.title: row(final) for final in self.finals}
    sections = [
      page.table('finals', FINALS, finals, 'method'),
      page.table('trials', TRIALS.capitalize(), shown, 'method', more, folded),
    ]
    return page.write(out / f'{NAME}.html', self.verdict, subtitle, sections)

  def show(self) -> None:
    """Prints the best trials, and the finals."""
    words = self.objective.words
    best = {each.label: {words: _value(each)} for each in self.tried[:_SHOWN]}
    tables.show(best, corner=TRIALS)
    finals = {each.title: {words: each.cell(self.form)} for each in self.finals}
    tables.show(finals, FINALS)


def _value(tried: Result) -> Cell:
  value = tried.value
  return NONE if value is None else Cell(value, f'{value:.4g}')
