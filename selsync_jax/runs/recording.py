"""What a run records in its folder: sessions, rows, and the outcome."""

from collections.abc import Mapping, Sequence
import contextlib
import pathlib
from typing import Any

from selsync_jax.cluster import processes
from selsync_jax.devices import layout
from selsync_jax.runs import history
from selsync_jax.runs import provenance
from selsync_jax.runs import records
from selsync_jax.runs.writers import Writers


class Recording(contextlib.ExitStack):
  """The records of one session of a run, in a folder that it has claimed.

  Rows are written inside the context. Only the first process writes. `changes`
  are those of `provenance.append`; see `writers.Writers` for the other
  arguments.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    config: Mapping[str, Any],
    step: int,
    sealed: records.Seals | None = None,
    changes: Sequence[str] = (),
  ):
    super().__init__()
    self._workdir, self._config = workdir, config
    self._step, self._sealed, self._changes = step, sealed, changes
    self._is_first = processes.is_first()
    self._writers: Writers | None = None

  def __enter__(self) -> 'Recording':
    """Adds the session, and drops what is after its first step."""
    workdir, config, step = self._workdir, self._config, self._step
    if not self._is_first:
      return self
    provenance.append(workdir, step, layout.describe(), self._changes)
    with contextlib.ExitStack() as stack:
      writers = Writers(workdir, config, step, self._sealed)
      self._writers = stack.enter_context(writers)
      # There is a summary if a finished run was extended, or lost its newest
      # checkpoint.
      if (workdir / records.SUMMARY).exists():
        records.write_config(workdir, config)
        (workdir / records.SUMMARY).unlink()
      self.push(stack.pop_all())
    return self

  def write(self, row: Mapping[str, Any]) -> None:
    """Writes a step's row if it has scores or `config.log.every` selects it."""
    is_due = row['step'] % self._config['log']['every'] == 0
    if self._writers and (is_due or any(map(history.is_score, row))):
      self._writers.write(row)

  def seal(self) -> records.Seals:
    """Flushes the rows to disk and returns their seals."""
    return self._writers.seal() if self._writers else records.NO_ROWS

  def finish(self, results: dict[str, Any]) -> dict[str, Any]:
    """Writes and returns the summary: the results, method, workers and seed."""
    summary = history.identity(self._config) | results
    if self._is_first:
      records.write_summary(self._workdir, summary)
    return summary
