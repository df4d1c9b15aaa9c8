"""Selective synchronization: synchronize only while the gradient is changing.

A worker whose gradient norm barely changes has little news for the others, so
its update may stay local. `selsync` measures that change inside an optax chain
and lets the workers vote, in one scalar all-reduce; `synchronize` acts on the
vote. Since the vote is inside the transformation, no caller can branch on a
value that differs between workers.

A gradient that is not finite never spreads silently: on its worker the change
is NaN, which vetoes the vote, so `sync` is false on all workers. The state
recovers with the next finite gradient. Parameters that have become NaN do not
recover, and veto forever. Watch the change, or wrap the optimizer in
`optax.apply_if_finite`; `selsync` itself must stay outside of it.

Example:
  >>> import jax, jax.numpy as jnp, optax
  >>> import selsync_jax as ss
  >>> tx = optax.chain(ss.selsync(delta=0.3), optax.sgd(1.0))
  >>> def step(w, state, grad):
  ...   updates, state = tx.update(grad, state, w)
  ...   w = optax.apply_updates(w, updates)
  ...   sync = ss.decision(state)
  ...   return ss.synchronize(sync, w), state, sync
  >>> step = jax.vmap(step, axis_name=ss.AXIS)
  >>> w = jnp.zeros(2)
  >>> state = jax.vmap(tx.init)(w)
  >>> for grad in ([1., 2.], [1., 2.], [1., 9.]):
  ...   w, state, sync = step(w, state, jnp.array(grad))
  ...   print(w, sync)
  [-1.5 -1.5] [ True  True]
  [-2.5 -3.5] [False False]
  [-8. -8.] [ True  True]

References:
  Tyagi and Swany, `Accelerating Distributed ML Training via Selective
  Synchronization`, CLUSTER 2023, Algorithm 1.
"""

from collections.abc import Callable
import math
from typing import Any, Literal, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from selsync_jax.config import Count, Fraction, Threshold
from selsync_jax.sync.agreement import check_local, check_whole
from selsync_jax.sync.change import measure, MeasureState, SMOOTHING
from selsync_jax.sync.consensus import AXIS, check_mapped
from selsync_jax.sync.part import part
from selsync_jax.sync.traffic import annotated
from selsync_jax.sync.transformation import Trigger

_VETO = -(1 << 16)
"""A ballot that outweighs the flags of all workers.

It is a constant, so that the step before the vote is the same program for any
number of workers.
"""


class SelSyncState(NamedTuple):
  """A worker's measurement, and the workers' decision.

  Attributes:
    measure: this worker's measurement; `measure.change` is the last change.
    ballot: int32 [], this worker's pending ballot: 1 for a flag, 0 for none,
      less than 0 for a veto.
    sync: bool [], whether this step synchronizes, equal on all workers.
    safe: bool [], whether a vote was held at this step without a veto, equal on
      all workers.
  """

  measure: MeasureState
  ballot: Int32[Array, '']
  sync: Bool[Array, '']
  safe: Bool[Array, '']


@part
def selsync(
  delta: Threshold | jax.Array | Callable[[jax.Array], jax.Array],
  *,
  smoothing: float | jax.Array | None = SMOOTHING,
  quorum: Fraction | None = None,
  vote_delay: Literal[0, 1] = 0,
  vote_every: Count = 1,
  axis_name: str = AXIS,
) -> Trigger:
  """Decides at which steps the workers synchronize (Algorithm 1).

  Each worker flags a step whose relative gradient change (see `measure`)
  reaches `delta`. If any flag is raised, `sync` is true in the `SelSyncState`
  of all workers. Put this trigger first in a chain, where it sees the raw local
  gradient: a clip before it would hide changes.

  Args:
    delta: the threshold, at least 0: a number, an array, or a schedule over
      steps. 0 synchronizes at every step, infinity only at the first. For
      `optax.inject_hyperparams`, make `vote_delay`, `vote_every` (and `quorum`,
      if set) static arguments there. `budgeted` finds a delta by itself.
    smoothing: the weight of the newest squared gradient norm, in (0, 1]; `None`
      is the paper's N / 100.
    quorum: the share of the workers that must raise a flag, in (0, 1] and
      rounded up; `None` is the paper's rule, one flag is enough.
    vote_delay: steps from a flag, or a veto, to its effect. 0 is the paper's;
      with 1 the vote travels while the next step computes.
    vote_every: steps from one vote to the next; a flag raised at any of them
      counts. 1 is the paper's.
  """
  meter = measure(smoothing, axis_name=axis_name)

  def init(params):
    unmeasured: Any = meter.init(params)
    no = jnp.bool(False)
    return SelSyncState(unmeasured, jnp.int32(0), no, no)

  def count(ballot):
    # The tolerance keeps a product such as 0.7 * 10 from rounding up to 8.
    share = (quorum or 0) * lax.axis_size(axis_name) - 1e-9
    total = lax.psum(ballot, axis_name)
    return total >= max(1, math.ceil(share)), total >= 0

  vote = annotated(count, rate=1 / vote_every, late=vote_delay)

  def update(updates, state, params=None, *, threshold=None, **_):
    check_mapped(axis_name)
    check_local(updates)
    check_whole(updates, axis_name)
    measured: Any = meter.update(updates, state.measure)[1]
    if threshold is None:
      threshold = delta(state.measure.count) if callable(delta) else delta
    flag = jnp.int32(measured.change >= threshold)
    flag = jnp.where(jnp.isnan(measured.change), _VETO, flag)
    due = (state.measure if vote_delay else measured).count % vote_every == 0
    if vote_delay:  # This step's flag waits for the next vote.
      cast, ballot = state.ballot, jnp.where(due, 0, state.ballot)
      ballot = _either(ballot, flag)
    else:
      cast = _either(state.ballot, flag)
      ballot = jnp.where(due, 0, cast)
    if vote_every == 1:
      return updates, SelSyncState(measured, ballot, *vote(cast))
    no = jnp.bool(False)
    outcome = lax.cond(due, vote, lambda _: (no, no), cast)
    return updates, SelSyncState(measured, ballot, *outcome)

  return Trigger(
    init,
    update,
    spacing=vote_every,
    vote_every=vote_every,
    threshold=float(delta) if isinstance(delta, int | float) else 1.0,
    meter=meter,
    compared=lambda state: state.measure.change,
  )


def _either(one, other):
  """Merges two ballots: a veto if either is one, else a flag if either is."""
  least = jnp.minimum(one, other)
  return jnp.where(least < 0, least, jnp.maximum(one, other))
