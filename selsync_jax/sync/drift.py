"""Reducers that keep workers with unlike data from drifting apart.

Between two averages, a worker follows its own data. These reducers correct each
local gradient by information from the last average. They need an averager of
the parameters.

References:
  Li et al., `Federated Optimization in Heterogeneous Networks`, MLSys 2020
    (FedProx).
  Karimireddy et al., `SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning`, ICML 2020.
"""

from typing import Any, NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32
import optax

from selsync_jax.config import NonNegative
from selsync_jax.sync import flat, resizing
from selsync_jax.sync.consensus import AXIS, consensus
from selsync_jax.sync.part import part
from selsync_jax.sync.transformation import Reducer

_CORRECTS: dict[str, Any] = dict(every_step=False, biased=True)


class ProximalState(NamedTuple):
  """State of `proximal`."""

  center: Any  # The parameters after the last synchronization, the target.
  synced: Bool[Array, '']  # Whether the step before synchronized.


@part
def proximal(mu: NonNegative) -> Reducer:
  r"""Pulls each worker to the last common parameters (FedProx).

  The local objective has the additional term :math:`\mu / 2\,\|w - w^t\|^2`.
  Nothing is sent.

  Args:
    mu: the weight of the term, at least 0; the paper's are 0.001 to 1.
  """

  def init(params):
    return ProximalState(params, jnp.bool(False))

  def update(updates, state, params=None, *, sync: Any, **_):
    center = optax.tree.where(state.synced, params, state.center)
    pull = optax.tree.sub(params, center)
    updates = optax.tree.add_scale(updates, mu, pull)
    return updates, ProximalState(center, sync)

  resize = resizing.fields(center=resizing.first, synced=resizing.first)
  return Reducer(init, update, resize=resize, **_CORRECTS)


class ScaffoldState(NamedTuple):
  """State of `scaffold`; three trees in float32 at least, and a count."""

  own: Any  # c_i, this worker's mean gradient between the last two averages.
  common: Any  # c, the mean of these over workers.
  total: Any  # The sum of this worker's gradients since the last average.
  count: Int32[Array, '']  # The number of these gradients.


@part
def scaffold(*, axis_name: str = AXIS) -> Reducer:
  """Adds the common minus the local mean gradient of the last round.

  It adds c - c_i to a worker's gradient, where c_i is the worker's control
  variate and c the mean over workers. At a synchronization, c_i becomes the
  worker's mean gradient since the last synchronization, or stays if no gradient
  was finite. With SGD of a constant learning rate this is the paper's option
  II, (x - y_i) / (K eta) + c_i - c. With other optimizers it is the mean
  gradient that this formula approximates. The all-reduce of the control
  variates is as large as an all-reduce of the parameters.
  """

  def init(params):
    zero = optax.tree.zeros_like(flat.wide(params))
    return ScaffoldState(zero, zero, zero, jnp.int32(0))

  def update(updates, state, params=None, *, sync: Any, **_):
    grads = flat.wide(updates)
    finite = jnp.isfinite(optax.tree.norm(grads))
    total, count = optax.tree.where(
      finite,
      (optax.tree.add(state.total, grads), state.count + 1),
      (state.total, state.count),
    )
    corrected = optax.tree.add(grads, optax.tree.sub(state.common, state.own))

    def exchange(state):
      new = optax.tree.scale(1 / jnp.maximum(count, 1), total)
      own = optax.tree.where(count > 0, new, state.own)
      zero = optax.tree.zeros_like(total)
      common = consensus(own, axis_name=axis_name)
      return ScaffoldState(own, common, zero, jnp.zeros_like(count))

    state = state._replace(total=total, count=count)
    state = lax.cond(sync, exchange, lambda state: state, state)
    return optax.tree.cast_like(corrected, updates), state

  resize = resizing.fields(own=resizing.mean, common=resizing.first)
  return Reducer(init, update, resize=resize, **_CORRECTS)
