"""A trace of a few training steps."""

import contextlib
import pathlib
from typing import Any

import jax


class Profile(contextlib.AbstractContextManager[Any]):
  """A context that traces a few steps of a session into `WORKDIR/profile`.

  TensorBoard's profile plugin, XProf and Perfetto read the trace.
  """

  SKIPPED, COUNT = 10, 5  # The steps before the trace, and in it.

  def __init__(self, workdir: pathlib.Path | None):
    self._workdir = workdir  # `None` traces nothing.
    self._steps = 0

  def __exit__(self, *exc: Any) -> None:
    if self._workdir and 0 < self._steps - self.SKIPPED <= self.COUNT:
      jax.profiler.stop_trace()

  def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
    """Returns a context to enter around every step."""
    if self._workdir is None:
      return contextlib.nullcontext()
    if self._steps == self.SKIPPED:
      jax.profiler.start_trace(self._workdir / 'profile')
    if self._steps == self.SKIPPED + self.COUNT:
      jax.profiler.stop_trace()
    self._steps += 1
    return jax.profiler.StepTraceAnnotation('train', step_num=number)
