"""A writer for TensorBoard, into `WORKDIR/tensorboard`."""

from collections.abc import Mapping
import contextlib
import pathlib
import socket
import time
from typing import Any

from tensorboard.compat.proto.event_pb2 import (
  Event,  # pyrefly: ignore
  SessionLog,  # pyrefly: ignore
)
from tensorboard.compat.proto.summary_pb2 import Summary  # pyrefly: ignore
from tensorboard.summary.writer.record_writer import RecordWriter

from selsync_jax.runs import records


class TensorBoardFile(contextlib.AbstractContextManager[Any]):
  """An event file for TensorBoard; each session of a run adds one.

  TensorBoard's `EventFileWriter` would import TensorFlow where it is installed,
  so this class uses its record writer directly.
  """

  def __init__(
    self, workdir: pathlib.Path, step: int, config: Mapping[str, Any]
  ):
    del config
    folder = workdir / 'tensorboard'
    folder.mkdir(exist_ok=True)
    name = f'events.out.tfevents.{time.time_ns()}.{socket.gethostname()}'
    self._file = (folder / name).open('wb')
    self._records = RecordWriter(self._file)
    self._add(file_version='brain.Event:2')
    # Makes TensorBoard drop later steps from earlier files.
    self._add(step=step + 1, session_log=SessionLog(status=SessionLog.START))

  def _add(self, **fields: Any) -> None:
    event = Event(wall_time=time.time(), **fields)
    self._records.write(event.SerializeToString())

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds the numbers of one logged step, except those per worker."""
    values = [
      Summary.Value(tag=name, simple_value=value)
      for name, value in records.numbers(row).items()
    ]
    self._add(step=row['step'], summary=Summary(value=values))
    self._file.flush()

  def __exit__(self, *exc: Any) -> None:
    self._file.close()
