"""A reducer that reuses the gradients of workers whose gradient hardly changes.

References:
  Chen, Giannakis, Sun and Yin, `LAG: Lazily Aggregated Gradient for
    Communication-Efficient Distributed Learning`, NeurIPS 2018 (LAG-WK).
"""

from typing import Any, NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32
import optax

from selsync_jax.config import Count
from selsync_jax.config import NonNegative
from selsync_jax.sync import resizing
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.consensus import consensus
from selsync_jax.sync.part import part
from selsync_jax.sync.reducers import skip_nonfinite
from selsync_jax.sync.traffic import Collective
from selsync_jax.sync.traffic import summed_nbytes
from selsync_jax.sync.transformation import Reducer


class LazyState(NamedTuple):
  """State of `lazy`; all but `sent` is equal on all workers."""

  sent: Any  # This worker's gradient when it last sent one.
  mean: Any  # The mean of these over workers.
  norms: Float32[Array, ' history']  # Squared norms of the last means.
  senders: Float32[Array, '']  # The share of the workers that have just sent.
  renewed: Float32[Array, '']  # Whether any has, 0 or 1.


@part
def lazy(
  xi: NonNegative = 0.1, history: Count = 10, *, axis_name: str = AXIS
) -> Reducer:
  r"""Uses the last gradient that a worker has sent until a new one differs.

  A worker sends its gradient if it differs from the one that it sent last by

  .. math::
    \|\delta_m\|^2 > \xi \sum_{d=1}^{D} \|\bar g^{k-d}\|^2

  where :math:`\bar g` are the means that all workers have applied. That is
  LAG-WK, whose :math:`\alpha^{-2} M^{-2} \|\theta^{k+1-d} - \theta^{k-d}\|^2`
  is this norm if the optimizer is SGD without momentum. The theory is for whole
  gradients: with small batches, most differences are noise, and all is sent.

  Every step takes a vote of 4 bytes, and an all-reduce if any worker sends. A
  ring has nothing to gain from a worker that stays silent alone; a run's rows
  have `senders`, the share that a parameter server would receive.

  Args:
    xi: the weight of each of the last means, at least 0; the paper's is 0.1. 0
      sends every gradient.
    history: D, how many means count; the paper's is 10.
  """

  def init(params):
    zero = optax.tree.zeros_like(params)
    none, whole = jnp.zeros(history), jnp.float32(1)
    return LazyState(zero, zero, none, whole, whole)

  def update(updates, state, params=None, **_):
    change = optax.tree.sub(updates, state.sent)
    norm = optax.tree.norm(change, squared=True)
    # A gradient that is not finite is sent, so that every worker sees it.
    asks = ~(norm <= xi * jnp.sum(state.norms))
    senders = lax.pmean(asks.astype(jnp.float32), axis_name)

    def renew(mean):
      sent = optax.tree.where(asks, change, optax.tree.zeros_like(change))
      return optax.tree.add(mean, consensus(sent, axis_name=axis_name))

    mean = lax.cond(senders > 0, renew, lambda mean: mean, state.mean)
    square = jnp.float32(optax.tree.norm(mean, squared=True))
    new = LazyState(
      sent=optax.tree.where(asks, updates, state.sent),
      mean=mean,
      norms=jnp.concatenate([square[None], state.norms[:-1]]),
      senders=senders,
      renewed=(senders > 0).astype(jnp.float32),
    )
    return skip_nonfinite(mean, new, state)

  def sends(params, _):
    nbytes = summed_nbytes(params)
    return (
      Collective('all_reduce', 4, 'step'),
      Collective('all_reduce', nbytes, 'step', scale='renewed'),
    )

  def metrics(state):
    return {'senders': state.senders, 'renewed': state.renewed}

  # The mean of what the workers have sent stays `mean`.
  rules = dict(sent=resizing.mean, mean=resizing.first, norms=resizing.first)
  resize = resizing.fields(**rules)
  return Reducer(init, update, sends, metrics=metrics, resize=resize)
