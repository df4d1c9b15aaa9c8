"""The engine, which runs, saves and resumes a simulation."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import simpy

from selsync_jax.config import RunError
from selsync_jax.simulate import numerics
from selsync_jax.simulate.simulation import Asynchronous, Simulation, Span, Use


class Engine:
  """Runs an asynchronous method, which starts the processes of a simulation.

  It raises `ConfigError` if a field of the method does not fit the cluster.
  """

  def __init__(self, method: Asynchronous, sim: Simulation):
    self.sim, self._algebra = sim, sim.algebra
    self._models = method(sim)
    self.uses = 0  # Returned so far by `advance`.

  def advance(self, uses: int) -> list[Use]:
    """Runs until `uses` gradients in all have reached the model.

    It stops between two instants of the clock, and returns the gradients since
    the last call, in order, with known metrics. Gradients beyond `uses` are
    returned by the next call.
    """
    wanted = uses - self.uses
    env = self.sim.env
    while len(self.sim.uses) < wanted or env.peek() == env.now:
      try:
        env.step()
      except simpy.core.EmptySchedule as error:
        raise RunError(
          f'all workers wait for each other at {env.now} virtual seconds'
        ) from error
    ready, self.sim.uses = self.sim.uses[:wanted], self.sim.uses[wanted:]
    self.uses = uses
    self._algebra.evaluate()
    return ready

  def spans(self) -> list[Span]:
    """Returns what workers did since the last call, ordered by end."""
    spans, self.sim.spans = self.sim.spans, []
    return spans

  def shared(self) -> dict[str, Any]:
    """Returns parameters and batch statistics, stacked: [workers, ...].

    A server's single model is repeated for all workers.
    """
    self._algebra.evaluate()
    trees = [numerics.shared(model.value.tree) for model in self._models()]
    trees *= self.sim.workers // len(trees)
    return jax.tree.map(lambda *x: np.stack(x), *trees)

  def save(self) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the state from which a new engine can resume.

    It is arrays [values, ...] by kind of value, and a record for JSON.
    """
    arrays, indices = self._algebra.save()
    return arrays, {'uses': self.uses, 'indices': indices}

  def like(self, record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the shapes of the arrays that were saved with a record."""
    return self._algebra.like(record['indices'])

  def resume(
    self, arrays: Mapping[str, Any], record: Mapping[str, Any]
  ) -> None:
    """Brings a new engine to the state that `save` returned.

    The clock runs again from the start, without arrays, which takes
    microseconds per event.
    """
    self._algebra.computes = False
    self.advance(record['uses'])
    self._algebra.restore(arrays, record['indices'])
