"""The progress of a run: a bar on a terminal, otherwise plain lines."""

from collections.abc import Iterable, Mapping
import datetime
import sys
import time
from typing import Any

import rich.columns
import rich.console
import rich.progress

from selsync_jax.runs import history

_SHOWN = {
  'loss': 'loss {:.4f}',
  'relative_change': 'Δ(g) {:.4f}',
  'lssr': 'LSSR {:.3f}',
  'samples_per_second': '{:,.0f} samples/s',
  'virtual_seconds': '{:,.1f} virtual seconds',
}
_PERIOD = 3600.0  # Seconds over which the speed is measured.


class Bar(rich.progress.Progress):
  """A bar, and below it values that wrap on a narrow terminal.

  Without a terminal nothing is shown, but the time is estimated.
  """

  def __init__(self, total: int, completed: float = 0):
    self._values: tuple[str, ...] = ()
    # Notebooks set FORCE_COLOR, and then rich would draw into a pipe.
    drawn = None if sys.stdout.isatty() else False
    console = rich.console.Console(force_interactive=drawn)
    super().__init__(
      rich.progress.BarColumn(bar_width=None),
      rich.progress.MofNCompleteColumn(),
      rich.progress.TimeRemainingColumn(),
      console=console,
      disable=not console.is_interactive,
      expand=True,
      speed_estimate_period=_PERIOD,
    )
    self._task = self.add_task('', total=total)
    # Work of earlier sessions is not part of the speed.
    self.tasks[0].completed = completed

  def get_renderables(self) -> Iterable[rich.console.RenderableType]:
    """Yields the bar and the values."""
    yield from super().get_renderables()
    yield rich.columns.Columns(self._values, padding=(0, 2))

  def draw(self, completed: float, values: Iterable[str]) -> None:
    """Shows the amount done, and short texts."""
    self._values = tuple(values)
    self.update(self._task, completed=completed)

  @property
  def time_left(self) -> str:
    """An estimate such as `0:01:30 left`; empty if unknown or zero."""
    (task,) = self.tasks
    seconds = task.time_remaining
    return f'{datetime.timedelta(seconds=seconds)} left' if seconds else ''


class Progress(Bar):
  """Shows rows of metrics: a bar on a terminal, otherwise lines.

  A line is printed after each evaluation, and after some seconds without one.
  """

  def __init__(self, start: int, steps: int, seconds: float):
    super().__init__(steps, start)
    self._steps, self._seconds = steps, seconds
    self._scores: dict[str, Any] = {}  # The last evaluation's.
    self._printed = time.monotonic()

  def show(self, row: Mapping[str, Any]) -> None:
    """Shows the metrics of a step, and the scores of the last evaluation."""
    scores = {name: row[name] for name in row if history.is_score(name)}
    self._scores = scores or self._scores
    values = [
      form.format(row[field])
      for field, form in _SHOWN.items()
      if row.get(field) is not None
    ]
    values += [
      f'{name.replace("_", " ")} {value:.4f}'
      for name, value in self._scores.items()
    ]
    self.draw(row['step'], values)
    now = time.monotonic()
    is_due = scores or now - self._printed >= self._seconds
    if self.disable and is_due:
      self._printed = now
      step = f'step {row["step"]}/{self._steps}'
      print(*filter(None, [step, self.time_left]), *values, sep='  ')
