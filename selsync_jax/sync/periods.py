"""Triggers whose period changes in the course of training.

No vote is needed: all workers count the same steps and follow the same learning
rate.

References:
  Lin et al., `Don't Use Large Mini-Batches, Use Local SGD`, ICLR 2020, section
    on post-local SGD (`post_local`).
  Gu et al., `A Quadratic Synchronization Rule for Distributed Deep Learning`,
    ICLR 2024 (`qsr`).
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from annotated_types import Interval
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32
import numpy as np
import optax

from selsync_jax.config import Positive
from selsync_jax.sync import resizing
from selsync_jax.sync.part import part
from selsync_jax.sync.transformation import Trigger

LONGEST = 2**30
"""The most steps of a round, so that the steps of a run fit into an int32."""

Period = Annotated[int, Interval(ge=1, le=LONGEST)]
"""Steps from one synchronization to the next."""


class RoundState(NamedTuple):
  """State of `post_local` and `qsr`.

  A round is the steps from one synchronization to the next.

  Attributes:
    step: int32 [], steps taken.
    due: int32 [], the last step of this round; 0 before the first.
    sync: bool [], whether the round is over.
  """

  step: Int32[Array, '']
  due: Int32[Array, '']
  sync: Bool[Array, '']


@part
def post_local(
  switch: Annotated[int, Interval(ge=0, le=LONGEST)], k: Period
) -> Trigger:
  """Synchronizes at each of the first steps, and periodically afterwards.

  The steps are 1, 2, ..., `switch`, `switch + k`, `switch + 2k`, and so on.

  Args:
    switch: the number of first steps that all synchronize; the paper's end at
      the first decay of the learning rate.
    k: steps from one synchronization to the next afterwards.
  """
  return _rounds(lambda step: jnp.where(step < switch, 1, k))


@part
def qsr(
  alpha: Positive, h_min: Period, learning_rate: optax.Schedule
) -> Trigger:
  r"""Synchronizes less often as the learning rate falls.

  A round that starts at learning rate :math:`\eta` has

  .. math::
    H = \max\left(H_{min}, \lfloor (\alpha / \eta)^2 \rfloor\right)

  steps. While the learning rate warms up at the start of a run, a round has as
  many steps as the first one after the warmup would have.

  If the learning rate decays to 0, the last round may outlast the run; the mean
  over workers is still what is evaluated.

  Args:
    alpha: the learning rate at which a round may have one step; above 0.
    h_min: the fewest steps of a round.
    learning_rate: the local optimizer's schedule.
  """

  def period(step):
    rate = learning_rate(jnp.maximum(step, warmup_steps(learning_rate)))
    # The tolerance keeps a quotient such as 0.3 / 0.1 from rounding down.
    quadratic = jnp.floor(jnp.square(alpha / rate) * (1 + 1e-6))
    return jnp.clip(quadratic, h_min, LONGEST).astype(jnp.int32)

  return _rounds(period)


def warmup_steps(learning_rate: optax.Schedule, within: int = 2**20) -> int:
  """Returns the number of steps at its start in which a schedule only rises.

  A schedule that rises in all of the first `within` steps has no warmup.
  """
  with jax.ensure_compile_time_eval():
    rates = np.asarray(jax.vmap(learning_rate)(jnp.arange(within)))
  return int(np.argmin(np.diff(rates) > 0))


def _rounds(period: Callable[[Any], Any]) -> Trigger:
  """Returns a trigger whose round that starts at `step` has `period(step)`."""

  def init(params):
    del params
    return RoundState(jnp.int32(0), jnp.int32(0), jnp.bool(False))

  def update(updates, state, params=None, *, synced=None, **extra_args):
    del params, extra_args
    synced = state.sync if synced is None else synced
    starts = synced | (state.due == 0)
    due = jnp.where(starts, state.step + period(state.step), state.due)
    return updates, RoundState(state.step + 1, due, state.step + 1 >= due)

  resize = resizing.fields(step=resizing.position)
  return Trigger(init, update, resize=resize)
