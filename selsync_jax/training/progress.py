"""Progress of a run: a bar on a terminal, otherwise plain lines."""

from collections.abc import Mapping
from typing import Any

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


class Progress:
  """Shows rows of metrics: a bar on a terminal, or a line per evaluation.

  Args:
    start: steps taken before this session.
    steps: of the whole run.
  """

  def __init__(self, start: int, steps: int):
    self._steps = steps
    console = rich.console.Console()
    self._bar = None
    if console.is_terminal:
      self._bar = rich.progress.Progress(
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeRemainingColumn(),
        rich.progress.TextColumn('{task.description}'),
        console=console,
      )
      self._task = self._bar.add_task('compiling', completed=start, total=steps)

  def show(self, row: Mapping[str, Any]) -> None:
    """Shows the metrics of a step."""
    text = '  '.join(
      form.format(row[field]) for field, form in _SHOWN.items() if field in row
    )
    scores = [
      f'{name.replace("_", " ")} {value:.4f}'
      for name, value in row.items()
      if history.is_score(name)
    ]
    if self._bar:
      self._bar.update(self._task, completed=row['step'], description=text)
    elif scores:
      print(f'step {row["step"]}/{self._steps}', text, *scores, sep='  ')

  def __enter__(self) -> 'Progress':
    if self._bar:
      self._bar.start()
    return self

  def __exit__(self, *exc: Any) -> None:
    if self._bar:
      self._bar.stop()
