"""A reducer that reuses the gradients of workers whose gradient hardly changes.

References:
  Chen, Giannakis, Sun and Yin, `LAG: Lazily Aggregated Gradient for
    Communication-Efficient Distributed Learning`, NeurIPS 2018 (LAG-WK).
  Sun, Chen, Giannakis and Yang, `Communication-Efficient Distributed Learning
    via Lazily Aggregated Quantized Gradients`, NeurIPS 2019 (LAQ: `bits`).
"""

import functools
from typing import Any, Literal, NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32
import optax

from selsync_jax.config import Count, NonNegative
from selsync_jax.sync import flat, wires, worker_mesh
from selsync_jax.sync.consensus import AXIS, consensus
from selsync_jax.sync.part import part
from selsync_jax.sync.reducers import skip_nonfinite
from selsync_jax.sync.traffic import annotated
from selsync_jax.sync.transformation import Reducer


class LazyState(NamedTuple):
  """State of `lazy`; `sent`, `rounding` and `silent` differ between workers."""

  sent: Any  # The gradient that this worker last sent, as others know it.
  mean: Any  # The mean of `sent` over workers.
  norms: Float32[Array, ' history']  # Squared norms of the last means.
  rounding: Float32[Array, '']  # Squared norm of the rounding error of `sent`.
  senders: Float32[Array, '']  # The share of workers that sent at this step.
  renewed: Float32[Array, '']  # 1 if any worker sent, otherwise 0.
  silent: Int32[Array, '']  # The steps since this worker sent.
  workers: Int32[Array, '']  # The number of workers at the last step.


@part
def lazy(
  xi: NonNegative = 0.1,
  history: Count = 10,
  *,
  bits: Literal[4, 8] | None = None,
  patience: Count = 100,
  axis_name: str = AXIS,
) -> Reducer:
  r"""Reuses the last gradient that a worker sent until a new one differs.

  A worker sends its gradient if :math:`\delta_m`, the difference to the last
  gradient that it sent, satisfies

  .. math::
    \|\delta_m\|^2 > \xi \sum_{d=1}^{D} \|\bar g^{k-d}\|^2

  where :math:`\bar g` are the means that all workers have applied. That is
  LAG-WK, whose :math:`\alpha^{-2} M^{-2} \|\theta^{k+1-d} - \theta^{k-d}\|^2`
  is this norm if the optimizer is SGD without momentum. The theory is for
  full-batch gradients: with small batches, most differences are noise, and
  nearly every gradient is sent.

  Every step takes a vote of 4 bytes, and an all-reduce if any worker sends. A
  ring saves nothing if only some workers are silent. A run's rows have
  `senders`, the share that a parameter server would receive. All workers send
  at the first step, and when the number of workers changes.

  Args:
    xi: the weight of each of the last means, at least 0; the paper's is 0.1. 0
      sends every gradient.
    history: D, the number of means that count; the paper's is 10.
    bits: 4 or 8: a worker sends the difference in integers of this many bits.
      The threshold rises by three times the squared rounding errors, now and
      when the worker last sent. That is LAQ. With 2 bits these errors alone
      exceed most differences. `None` does not round.
    patience: t-bar of LAQ, the steps after which a silent worker sends.
  """
  codec = bits and wires.integers(bits)

  def init(params):
    tree = optax.tree.zeros_like(flat.wide(params))
    zero, whole, none = jnp.float32(0), jnp.float32(1), jnp.int32(0)
    norms = jnp.zeros(history)
    return LazyState(tree, tree, norms, zero, whole, whole, none, none)

  def update(updates, state, params=None, **_):
    # If the number of workers has changed, all send.
    workers = lax.axis_size(axis_name)
    known = state.workers == workers
    state = optax.tree.where(known, state, init(updates))
    grads = flat.wide(updates)
    change = optax.tree.sub(grads, state.sent)
    if codec:
      change, error, mean_of = _rounded(change, codec, axis_name)
    else:
      error = jnp.zeros_like(state.rounding)
      mean_of = functools.partial(_mean, change, axis_name=axis_name)
    norm = optax.tree.norm(change, squared=True)
    bound = xi * jnp.sum(state.norms) + 3 * (error + state.rounding)
    # A gradient that is not finite is sent, so that every worker sees it.
    near = (norm <= bound) & jnp.isfinite(bound)
    asks = ~(near & known & (state.silent < patience))
    senders = lax.pmean(asks.astype(jnp.float32), axis_name)

    def renew(mean):
      return optax.tree.add(mean, mean_of(asks))

    renewed = annotated(renew, scale='renewed')
    mean = lax.cond(senders > 0, renewed, lambda mean: mean, state.mean)
    square = jnp.float32(optax.tree.norm(mean, squared=True))
    heard = optax.tree.add(state.sent, change) if codec else grads
    new = LazyState(
      sent=optax.tree.where(asks, heard, state.sent),
      mean=mean,
      norms=jnp.concatenate([square[None], state.norms[:-1]]),
      rounding=jnp.where(asks, error, state.rounding),
      senders=senders,
      renewed=(senders > 0).astype(jnp.float32),
      silent=jnp.where(asks, 0, state.silent + 1),
      workers=jnp.int32(workers),
    )
    reports = 'senders', 'renewed'
    mean, state = skip_nonfinite(mean, new, state, reports)
    return optax.tree.cast_like(mean, updates), state

  def metrics(state):
    return {'senders': state.senders, 'renewed': state.renewed}

  return Reducer(init, update, metrics=metrics, consecutive=True)


def _mean(change: Any, asks: Any, axis_name: str) -> Any:
  """Returns the mean over workers of the changes that are sent."""
  sent = optax.tree.where(asks, change, optax.tree.zeros_like(change))
  return consensus(sent, axis_name=axis_name)


def _padded(size: int) -> int:
  return -(-size // wires.BLOCK) * wires.BLOCK


def _rounded(change: Any, codec: wires.Codec, axis_name: str) -> Any:
  """Returns a rounded change, the squared error, and a function for the mean.

  `mean(asks)` returns the mean of the changes that workers send; `asks` says
  whether this worker sends.
  """
  vector, rebuild = flat.float32(change)
  padded = jnp.pad(vector, (0, _padded(vector.size) - vector.size))
  message = codec.encode(padded)
  known = codec.decode(message)

  def mean(asks):
    sent = jnp.where(asks, message, 0)
    received = codec.decode(worker_mesh.all_gather(sent, axis_name))
    return rebuild(jnp.mean(received, axis=0)[: vector.size])

  error = jnp.sum((padded - known) ** 2)
  return rebuild(known[: vector.size]), error, mean
