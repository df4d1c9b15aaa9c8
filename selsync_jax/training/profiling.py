"""A trace of a few steps, which shows where their time goes."""

import contextlib
import pathlib
from typing import Any

import jax

FOLDER = 'profile'
FIRST, COUNT = 10, 5
"""The steps of a session before the trace, and in it."""


class Profile:
  """A context that traces a few steps into `WORKDIR/profile`.

  TensorBoard's profile plugin, XProf and Perfetto read the trace.

  Args:
    workdir: the run's folder, or `None` to trace nothing.
  """

  def __init__(self, workdir: pathlib.Path | None):
    self._workdir = workdir
    self._steps = 0

  def __enter__(self) -> 'Profile':
    return self

  def __exit__(self, *exc: Any) -> None:
    if self._workdir and FIRST < self._steps <= FIRST + COUNT:
      jax.profiler.stop_trace()

  def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
    """Returns a context to enter around every step."""
    if self._workdir is None:
      return contextlib.nullcontext()
    if self._steps == FIRST:
      jax.profiler.start_trace(self._workdir / FOLDER)
    if self._steps == FIRST + COUNT:
      jax.profiler.stop_trace()
    self._steps += 1
    return jax.profiler.StepTraceAnnotation('train', step_num=number)
