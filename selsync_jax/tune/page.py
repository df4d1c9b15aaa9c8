"""The page of a search: its recipe beside BSP, and what it has tried."""

from collections.abc import Sequence
import os
import pathlib
import statistics
from typing import NamedTuple

from markupsafe import Markup
import numpy as np
import rich.box
import rich.console
import rich.table

from selsync_jax.report import facts
from selsync_jax.report import figure
from selsync_jax.report import image_files
from selsync_jax.report import page
from selsync_jax.report import pareto_plot
from selsync_jax.report.facts import Cell
from selsync_jax.runs import files
from selsync_jax.tune.search import Result

NAME = 'tune'
FINALS = 'With new seeds, on the validation split that chose'
_SHOWN = 10  # Trials in the table that are not folded away.
_COSTS = {  # The label and the unit of a field of `Point`.
  'sent': ('bytes sent per worker', 'B'),
  'seconds': ('time on the network (seconds)', ''),
}


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
    mean, text = facts.spread(list(self.reached.values()), form)
    if missed := len(self.seeds) - len(self.reached):
      text += f', {missed} of {len(self.seeds)} never'
    return Cell(mean, text)

  def above(self, other: 'Final') -> Cell:
    """Returns how far its values are above another one's, in percent."""
    return facts.excess(self.reached, other.reached).cell('+z.2f')


def _form(finals: Sequence[Final]) -> str:
  """Returns the format of the values of all."""
  groups = [list(final.reached.values()) for final in finals]
  return facts.column_form(groups, '.4g')


def verdict(finals: Sequence[Final], words: str, is_time: bool) -> str:
  """Describes the first, the recipe, beside the second, which is tuned BSP.

  It also says how sure that is, and which of all is the cheapest that the seeds
  do not tell from the recipe.
  """
  recipe, bsp, *_ = finals
  form = _form(finals)
  line = f'{words}: {recipe.cell(form).text} by {recipe.label}; '
  line += f'{bsp.cell(form).text} by tuned BSP'
  every = all(len(each.reached) == len(each.seeds) for each in (recipe, bsp))
  if is_time and every and recipe.label != bsp.label:
    ratio = bsp.cell(form).value / recipe.cell(form).value
    line += f', {ratio:.2g} times as long'

  def contender(final):
    sent = final.mean('sent')
    text = f'{final.cell(form).text} for {facts.size(sent)} per worker'
    return facts.Contender(final.name, text, sent, final.reached)

  others = {
    final.label: contender(final)
    for final in finals
    if final.label != recipe.label
    and len(final.reached) >= max(len(recipe.reached), 1)
  }
  if recipe.reached:
    line += facts.doubt(contender(recipe), [*others.values()])
  return line


def front(tried: Sequence[Result], metric: str, higher: bool) -> figure.Plot:
  """Plots the scores of trials over what they cost, by method.

  Trials that sent nothing are left out, unless none did: they were stopped
  before their workers first met.
  """
  tried = [each for each in tried if each.point.sent] or tried
  scores = [each.point.score for each in tried]
  y, panels = figure.spanning([scores]), []
  for cost, (label, unit) in _COSTS.items():
    costs = [getattr(each.point, cost) for each in tried]
    best = pareto_plot.pareto([*zip(costs, scores, strict=True)], higher)
    marks: list[figure.Mark] = [*pareto_plot.front_line(best)]
    for i, method in enumerate(dict.fromkeys(t.method for t in tried)):
      look = figure.series(i)._replace(width=0, dash=(), opacity=0.6)
      own = [k for k, each in enumerate(tried) if each.method == method]
      x, shown = np.take([costs, scores], own, axis=1)
      hover = f'{method}: {{y}} for {{x}}'
      marks.append(figure.Line(method, x, shown, look, hover=hover))
    axis = pareto_plot.cost_axis(costs, [costs], label, unit)
    title = '' if panels else f'validation {metric}'
    panels.append(figure.Panel(title, axis, y, marks, 280))
  return figure.Plot(
    'front',
    f'Validation {metric} of the trials against cost',
    'Each trial where it reached the target or, if it did not, its best score. '
    'A line joins those that no other beats in both score and cost. Trials '
    'that sent nothing are left out.',
    panels,
    columns=2,
    compares_x=False,
  )


def write(
  out: pathlib.Path,
  title: str,
  subtitle: str,
  words: str,
  finals: Sequence[Final],
  tried: Sequence[Result],
  plotted: figure.Plot,
) -> pathlib.Path:
  """Writes the page and its figure; returns the page's path.

  `words` describe a value, and `tried` are the best first.
  """
  image_files.write([plotted], out)
  form = _form(finals)
  rows = [_row(i, each, out) for i, each in enumerate(tried, 1)]
  head = ['method', words, 'score', 'sent', 'seconds', '']
  body = [
    page.header(title, subtitle),
    page.table(
      'finals',
      FINALS,
      ['method', words, 'above tuned BSP, %', 'score', 'sent', 'seconds'],
      [(final.title, _cells(final, finals[1], form)) for final in finals],
    ),
    page.figure(plotted),
    page.table(
      'trials',
      'Trials, the best first',
      head,
      rows[:_SHOWN],
      f'The other {len(rows) - _SHOWN}',
      rows[_SHOWN:],
    ),
  ]
  path = out / f'{NAME}.html'
  files.write(path, page.page(title, body))
  return path


def _cells(final: Final, bsp: Final, form: str) -> list[str | Markup]:
  above = '' if final is bsp else page.number(*final.above(bsp))
  costs: list[str | Markup] = ['–'] * 3
  if final.reached:
    costs = _costs(*map(final.mean, ('score', 'sent', 'seconds')))
  return [page.number(*final.cell(form)), above, *costs]


def _costs(score: float, sent: float, seconds: float) -> list[str | Markup]:
  return [
    page.number(score, f'{score:.4g}'),
    page.number(sent, facts.size(sent)),
    page.number(seconds, f'{seconds:.4g}'),
  ]


def _row(
  rank: int, tried: Result, out: pathlib.Path
) -> tuple[str, list[str | Markup]]:
  value = '–' if tried.value is None else f'{tried.value:.4g}'
  address = os.path.relpath(tried.run.workdir, out)
  cells = [
    page.number(tried.value, value),
    *_costs(*tried.point),
    page.link(address, 'run'),
  ]
  return f'{rank}. {tried.label}', cells


def show(finals: Sequence[Final], tried: Sequence[Result], words: str) -> None:
  """Prints the best trials, and the finals."""
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
  table.add_column('trials, the best first')
  table.add_column(words, justify='right')
  for each in tried[:_SHOWN]:
    value = '–' if each.value is None else f'{each.value:.4g}'
    table.add_row(each.label, value)
  table.add_section()
  table.caption = f'{FINALS}, below the line'
  for each in finals:
    table.add_row(each.title, each.cell(_form(finals)).text)
  rich.console.Console().print(table)
