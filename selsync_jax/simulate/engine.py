"""A method on a cluster, from outside: run it, save it, resume it."""

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
from selsync_jax.simulate.method import Method
from selsync_jax.simulate.numerics import Numerics
from selsync_jax.simulate.simulation import Simulation
from selsync_jax.simulate.simulation import Span
from selsync_jax.simulate.simulation import Use
from selsync_jax.simulate.values import Values


class Engine:
  """Runs an asynchronous method on a virtual cluster.

  Args:
    method: starts the processes.
    cluster: who is how fast.
    nbytes: of the parameters and batch statistics.
    numerics: computes; `None` runs the clock alone, for times.
    seed: of what the method draws.

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
    self.uses = 0  # Gradients that reached the model, as far as returned.

  def advance(self, uses: int) -> list[Use]:
    """Runs until that many gradients in all have reached the model.

    It ends between two instants of the clock, so more may have reached it; they
    are returned by the next call.

    Returns:
      Those that did since the last call, in order. Their metrics are known.
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
    """What workers did since the last call, in order of the ends."""
    spans, self.sim.spans = self.sim.spans, []
    return spans

  def shared(self) -> dict[str, Any]:
    """Parameters and batch statistics, stacked: arrays [workers, ...].

    A single model, a server's, stands for all workers.
    """
    self._values.evaluate()
    trees = [model.value.tree for model in self._models()]
    trees *= self.sim.workers // len(trees)
    return jax.tree.map(
      lambda *x: np.stack(x),
      *[{k: t[k] for k in ('params', 'model_state')} for t in trees],
    )

  def save(self) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a new engine needs to go on from here.

    Returns:
      Arrays by kind of value [values of that kind, ...], and a record that
      JSON can hold.
    """
    arrays, indices = self._values.save()
    return arrays, {'uses': self.uses, 'indices': indices}

  def like(self, record: Mapping[str, Any]) -> dict[str, Any]:
    """The shapes of the arrays that were saved with a record."""
    assert self._numerics is not None
    return {
      kind: abstract(self._numerics.shapes[kind], len(indices))
      for kind, indices in record['indices'].items()
    }

  def resume(
    self, arrays: Mapping[str, Any], record: Mapping[str, Any]
  ) -> None:
    """Brings a new engine to where another one was saved.

    The clock runs again from the start, without any arrays, which costs
    microseconds per event.

    Args:
      arrays: as saved.
      record: as saved.
    """
    self._values.computes = False
    self.advance(record['uses'])
    self._values.restore(arrays, record['indices'])
