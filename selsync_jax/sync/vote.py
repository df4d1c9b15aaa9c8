"""The workers' vote: one int32 each, summed in one all-reduce.

A ballot is 1 for a raised flag, 0 for none, and less than 0 for a veto. One
veto outweighs the flags of all.

References:
  Tyagi and Swany, CLUSTER 2023, Algorithm 1, lines 10 to 13.
"""

import math
from typing import NamedTuple

from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.traffic import Collective

BYTES = 4
"""The size of one ballot, an int32."""


class Outcome(NamedTuple):
  """The outcome of a vote, equal on all workers.

  Attributes:
    sync: bool [], whether enough flags were raised and nobody vetoed.
    safe: bool [], whether a vote was held and nobody vetoed.
  """

  sync: Bool[Array, '']
  safe: Bool[Array, '']


def ballot(change, delta, *, axis_name: str = AXIS) -> Int32[Array, '']:
  """Returns a flag where `change` reaches `delta`, a veto where it is NaN."""
  flag = jnp.int32(change >= delta)
  return jnp.where(jnp.isnan(change), -lax.axis_size(axis_name), flag)


def either(one, other) -> Int32[Array, '']:
  """Merges two ballots: a veto if either is one, else a flag if either is."""
  return jnp.where(
    jnp.minimum(one, other) < 0,
    jnp.minimum(one, other),
    jnp.maximum(one, other),
  )


def count(
  ballot, quorum: float | None = None, *, axis_name: str = AXIS
) -> Outcome:
  """Counts the ballots of all workers in one scalar all-reduce.

  Args:
    ballot: int32 [], this worker's ballot.
    quorum: the share of workers, in (0, 1] and rounded up, that must raise
      their flags; `None` means that one is enough.
    axis_name: the mapped axis.
  """
  # The tolerance keeps a product such as 0.7 * 10 from rounding up to 8.
  share = (quorum or 0) * lax.axis_size(axis_name) - 1e-9
  total = lax.psum(ballot, axis_name)
  return Outcome(total >= max(1, math.ceil(share)), total >= 0)


def hold(
  ballot, due, vote_every: int, quorum: float | None, *, axis_name: str = AXIS
) -> Outcome:
  """Counts the ballots if a vote is due; otherwise decides nothing.

  `due` is a bool [], equal on all workers. `quorum` is that of `count`.
  """
  if vote_every == 1:
    return count(ballot, quorum, axis_name=axis_name)
  return lax.cond(
    due,
    lambda ballot: count(ballot, quorum, axis_name=axis_name),
    lambda ballot: Outcome(jnp.bool(False), jnp.bool(False)),
    ballot,
  )


def sends(vote_every: int) -> tuple[Collective, ...]:
  """Returns what a vote every `vote_every` steps sends."""
  return (Collective('all_reduce', BYTES, 'step', 1 / vote_every),)
