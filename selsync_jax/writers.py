"""Where the rows of a run go: metrics.jsonl always, TensorBoard if it is there.

A writer is a context manager with `write(row)`. Another place to keep metrics
is another class like these, and a line in `create`.
"""

from collections.abc import Mapping
import importlib.util
import pathlib
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf
from tensorflow.core.framework.summary_pb2 import Summary

from selsync_jax import records

TENSORBOARD = 'tensorboard'


@runtime_checkable  # So that tests check who says to be one.
class Writer(Protocol):
  """Takes the rows of a run, as `Ledger.enter` makes them."""

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step."""

  def __enter__(self) -> 'Writer': ...

  def __exit__(self, *exc: Any) -> None: ...


class TensorBoardFile:
  """Appends to an event file that TensorBoard reads.

  TensorFlow, which reads the data anyway, writes it. One operation takes a
  whole row: `tf.summary.scalar` would be one operation a number, ten times
  slower.
  """

  def __init__(self, workdir: pathlib.Path):
    folder = str(workdir / TENSORBOARD)
    self._writer = tf.summary.create_file_writer(folder)

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds the numbers of one logged step; those per worker it leaves out."""
    values = [
      Summary.Value(tag=name, simple_value=value)
      for name, value in row.items()
      if isinstance(value, int | float)
    ]
    text = Summary(value=values).SerializeToString()
    with self._writer.as_default():
      tf.summary.experimental.write_raw_pb(text, step=row['step'])

  def __enter__(self) -> 'TensorBoardFile':
    return self

  def __exit__(self, *exc: Any) -> None:
    self._writer.close()


def create(workdir: pathlib.Path, step: int) -> list[Writer]:
  """Those of a run on this machine.

  Args:
    workdir: of the run.
    step: where it stands.
  """
  installed = importlib.util.find_spec('tensorboard')
  return [
    records.MetricsFile(workdir, step),
    *([TensorBoardFile(workdir)] if installed else []),
  ]
