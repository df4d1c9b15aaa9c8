"""The engine, which runs, saves and resumes a simulation."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import simpy

from selsync_jax.config import config_errors
from selsync_jax.config import RunError
from selsync_jax.devices.mapper import abstract
from selsync_jax.simulate.algebra import Algebra
from selsync_jax.simulate.cluster import Cluster
from selsync_jax.simulate.numerics import Numerics
from selsync_jax.simulate.simulation import Method
from selsync_jax.simulate.simulation import Simulation
from selsync_jax.simulate.simulation import Span
from selsync_jax.simulate.simulation import Use
from selsync_jax.simulate.values import Values


class Engine:
  """Runs an asynchronous method on a virtual cluster.

  Args:
    method: the method, which starts the processes.
    cluster: the cluster.
    nbytes: the size of parameters and batch statistics, in bytes.
    numerics: what computes the arrays; `None` runs the clock alone, for times.
    seed: the seed of the method's draws.

  Raises:
    ConfigError: if the method has a field that does not fit the cluster.
  """

  def __init__(
    self,
    method: Method,
    cluster: Cluster,
    nbytes: float,
    numerics: Numerics | None = None,
    seed: int = 0,
  ):
    self._numerics = numerics
    batch = numerics.gradients if numerics else None
    self._values = Values(batch, computes=numerics is not None)
    self.sim = Simulation(
      cluster.seconds,
      cluster.network,
      nbytes,
      Algebra(self._values, numerics),
      seed,
    )
    with config_errors('sync'):
      self._models = method(self.sim)
    self.uses = 0  # Returned so far by `advance`.

  def advance(self, uses: int) -> list[Use]:
    """Runs until `uses` gradients in all have reached the model.

    It stops between two instants of the clock. Gradients beyond `uses` are
    returned by the next call.

    Returns:
      The gradients since the last call, in order. Their metrics are known.
    """
    wanted = uses - self.uses
    env = self.sim.env
    while len(self.sim.uses) < wanted or env.peek() == env.now:
      try:
        env.step()
      except simpy.core.EmptySchedule as error:
        raise RunError(
          f'all workers wait for each other at {self.sim.now} virtual seconds'
        ) from error
    ready, self.sim.uses = self.sim.uses[:wanted], self.sim.uses[wanted:]
    self.uses = uses
    self._values.evaluate()
    return ready

  def spans(self) -> list[Span]:
    """Returns what workers did since the last call, ordered by end."""
    spans, self.sim.spans = self.sim.spans, []
    return spans

  def shared(self) -> dict[str, Any]:
    """Returns parameters and batch statistics, stacked: [workers, ...].

    A server's single model is repeated for all workers.
    """
    self._values.evaluate()
    trees = [model.value.tree for model in self._models()]
    trees *= self.sim.workers // len(trees)
    return jax.tree.map(
      lambda *x: np.stack(x),
      *[{k: t[k] for k in ('params', 'model_state')} for t in trees],
    )

  def save(self) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what a new engine needs to resume from here.

    Returns:
      Arrays [values, ...] by kind of value, and a record that JSON can hold.
    """
    arrays, indices = self._values.save()
    return arrays, {'uses': self.uses, 'indices': indices}

  def like(self, record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the shapes of the arrays that were saved with a record."""
    assert self._numerics is not None
    return {
      kind: abstract(self._numerics.shapes[kind], len(indices))
      for kind, indices in record['indices'].items()
    }

  def resume(
    self, arrays: Mapping[str, Any], record: Mapping[str, Any]
  ) -> None:
    """Brings a new engine to where another one was saved.

    The clock runs again from the start, without arrays, which takes
    microseconds per event.

    Args:
      arrays: the arrays that `save` returned.
      record: the record that `save` returned.
    """
    self._values.computes = False
    self.advance(record['uses'])
    self._values.restore(arrays, record['indices'])
