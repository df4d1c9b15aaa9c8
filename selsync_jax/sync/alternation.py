"""An averager that alternates between two others."""

from typing import Any, NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from selsync_jax.config import Count
from selsync_jax.sync import resizing
from selsync_jax.sync.averagers import Averager, check_inside, WHOLE
from selsync_jax.sync.part import part
from selsync_jax.sync.traffic import annotated


class InterleaveState(NamedTuple):
  """State of `interleave`; `rounds` is equal on all workers."""

  rounds: Int32[Array, '']
  averager: Any
  between: Any


@part
def interleave(k: Count, averager: Averager, between: Averager) -> Averager:
  """Averages by one averager at every k-th synchronization, else by another.

  With `outer`, and random fragments between, it is SPARTA with DiLoCo (Beton et
  al., MCDC workshop at ICLR 2025).

  Args:
    k: the period of `averager`, in synchronizations.
    averager: the averager of every k-th synchronization.
    between: the averager of all other synchronizations.

  Raises:
    ValueError: if `between` remembers its last tree, which `averager` changes,
      or if either averager is delayed or averages nothing.
  """
  check_inside(averager)
  check_inside(between)
  if between.remembers:
    raise ValueError(
      f'between={between}: it remembers its last average, and averager '
      f'{averager} changes that'
    )

  def apply(tree, state):
    def kth(tree, state):
      tree, own = averager.average(tree, state.averager)
      return tree, state._replace(averager=own)

    def other(tree, state):
      tree, own = between.average(tree, state.between)
      return tree, state._replace(between=own)

    state = state._replace(rounds=state.rounds + 1)
    often = annotated(kth, rate=1 / k), annotated(other, rate=1 - 1 / k)
    return lax.cond(state.rounds % k == 0, *often, tree, state)

  def check(workers):
    averager.check(workers)
    between.check(workers)

  def metrics(state):
    return {
      **between.metrics(state.between),
      **averager.metrics(state.averager),
    }

  return Averager(
    lambda tree: InterleaveState(
      jnp.int32(0), averager.init(tree), between.init(tree)
    ),
    apply,
    agrees=averager.agrees and between.agrees,
    piece=WHOLE if averager.piece is between.piece is WHOLE else None,
    rebase=lambda tree, state: state._replace(
      averager=averager.rebase(tree, state.averager)
    ),
    check=check,
    metrics=metrics,
    resize=resizing.fields(
      rounds=resizing.first, averager=averager.resize, between=between.resize
    ),
  )
