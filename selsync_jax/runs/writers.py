"""Where the rows of a run go: metrics.jsonl, and an event file of TensorBoard.

A writer is a context manager with `write(row)`. To keep metrics somewhere else,
add a class like these and list it in `Writers`.
"""

from collections.abc import Mapping
import contextlib
import pathlib
import socket
import time
from typing import Any, Protocol, runtime_checkable

from tensorboard.compat.proto.event_pb2 import Event  # pyrefly: ignore
from tensorboard.compat.proto.summary_pb2 import Summary  # pyrefly: ignore
from tensorboard.summary.writer.record_writer import RecordWriter

from selsync_jax.runs import records

TENSORBOARD = 'tensorboard'


@runtime_checkable  # So that tests can check who implements it.
class Writer(Protocol):
  """Takes the rows of a run, as `Ledger.enter` returns them."""

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step."""

  def __enter__(self) -> 'Writer': ...

  def __exit__(self, *exc: Any) -> None: ...


class TensorBoardFile:
  """An event file that TensorBoard reads; each session of a run adds one.

  Written by TensorBoard's own record writer. Its `EventFileWriter` around that
  would import TensorFlow wherever it is installed.
  """

  def __init__(self, workdir: pathlib.Path):
    folder = workdir / TENSORBOARD
    folder.mkdir(exist_ok=True)
    name = f'events.out.tfevents.{time.time_ns()}.{socket.gethostname()}'
    self._file = (folder / name).open('wb')
    self._records = RecordWriter(self._file)
    self._add(file_version='brain.Event:2')

  def _add(self, **fields: Any) -> None:
    event = Event(wall_time=time.time(), **fields)
    self._records.write(event.SerializeToString())

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds the numbers of one logged step, except those per worker."""
    values = [
      Summary.Value(tag=name, simple_value=value)
      for name, value in row.items()
      if isinstance(value, int | float)
    ]
    self._add(step=row['step'], summary=Summary(value=values))
    self._file.flush()

  def __enter__(self) -> 'TensorBoardFile':
    return self

  def __exit__(self, *exc: Any) -> None:
    self._file.close()


class Writers(contextlib.ExitStack):
  """Where the rows of a run go, all at once.

  Args:
    workdir: of the run.
    step: the last step of the run so far.
    sealed: the rows of the run at that step, see `records.MetricsFile`.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    step: int,
    sealed: records.Seals = records.NO_ROWS,
  ):
    super().__init__()
    self._metrics = records.MetricsFile(workdir, step, sealed)
    self._all: list[Writer] = [self._metrics, TensorBoardFile(workdir)]
    for writer in self._all:
      self.enter_context(writer)

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step."""
    for writer in self._all:
      writer.write(row)

  def seal(self) -> records.Seals:
    """See `records.MetricsFile`."""
    return self._metrics.seal()
