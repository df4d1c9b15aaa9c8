"""Averagers in which each worker exchanges parameters with a few others.

Parameters still differ between workers, and information spreads over rounds.
Every exchange is a permutation, so the mixing matrix is doubly stochastic and
the mean over all workers is preserved.

References (with titles in `selsync_jax.methods.table`):
  Lian et al., NeurIPS 2017 (the ring).
  Ying et al., NeurIPS 2021 (the one-peer exponential graph).
  Li et al., TPDS 2021 (WAGMA: butterfly groups).
  Luo et al., ASPLOS 2020 (Prague: random groups).
"""

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any, Literal, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Int32
import numpy as np

from selsync_jax.config import Count
from selsync_jax.sync import flat
from selsync_jax.sync.averagers import Averager
from selsync_jax.sync.consensus import AXIS, means
from selsync_jax.sync.part import part
from selsync_jax.sync.traffic import annotated

Stage = tuple[tuple[int, ...], ...]
"""Simultaneous exchanges. Each is a permutation, whose element i is the worker
that receives from worker i. A worker takes the mean of its own vector and the
received ones."""

Round = tuple[Stage, ...]
"""The stages of one synchronization, in order."""

PARTITIONS = 16
"""The number of random partitions in a program; each round draws one."""

Topology = Literal['exponential', 'ring', 'random']
Grouping = Literal['butterfly', 'random']


class ExchangeState(NamedTuple):
  """State of `gossip` and `groups`, equal on all workers."""

  rounds: Int32[Array, '']


@part
def gossip(
  topology: Topology = 'exponential', seed: int = 0, *, axis_name: str = AXIS
) -> Averager:
  """Averages each worker with one or two others.

  Args:
    topology: `exponential`: in round r, worker i sends to worker
      i + 2^(r mod log2 N), and averages its own with the received parameters.
      If N is a power of two, all agree after log2 N rounds. `ring`: a worker
      averages its own and both neighbors' parameters. `random`: disjoint pairs,
      drawn in each round; with an odd number of workers, one has no partner.
    seed: the seed of the random draws.
  """
  draws = seed if topology == 'random' else None
  return _exchanging(TOPOLOGIES[topology], draws, None, axis_name)


@part
def groups(
  size: Count = 2,
  how: Grouping = 'butterfly',
  all_every: Count | None = None,
  seed: int = 0,
  *,
  axis_name: str = AXIS,
) -> Averager:
  """Gives every worker the mean over its group; the groups change.

  A group averages by recursive doubling, in log2(size) exchanges.

  Args:
    size: S, the number of workers in a group, a power of two that divides N.
      WAGMA's is the square root of N.
    how: `butterfly`: in round r, the workers of a group have indices that
      differ only in the log2 S bits from bit r log2 S on, cyclically. N must be
      a power of two, and all workers agree after log2 N / log2 S rounds.
      `random`: one of 16 random partitions, drawn in each round.
    all_every: rounds from one average over all workers to the next; WAGMA's
      tau is 10. `None` means never.
    seed: the seed of the partitions and draws.

  Raises:
    ValueError: if `size` is not a power of two above 1; in `check` and `apply`,
      if the workers cannot be divided into such groups.
  """
  if size < 2 or size & (size - 1):
    raise ValueError(f'size must be a power of two above 1, got {size}')

  def rounds(workers):
    if workers % size:
      raise ValueError(
        f'{workers} workers cannot be divided into groups of {size}'
      )
    return PARTITIONINGS[how](workers, size, seed)

  draws = seed if how == 'random' else None
  return _exchanging(rounds, draws, all_every, axis_name)


def _exchanging(
  rounds_of: Callable[[int], tuple[Round, ...]],
  seed: int | None,
  all_every: int | None,
  axis_name: str,
) -> Averager:
  """Returns an averager that runs one of `rounds_of(N)` at a time.

  A seed draws the round at random; without one, the rounds take turns.
  """

  def apply(tree, state):
    rounds = rounds_of(lax.axis_size(axis_name))
    if seed is None:
      index = state.rounds % len(rounds)
    else:
      key = jax.random.fold_in(jax.random.key(seed), state.rounds)
      index = jax.random.randint(key, (), 0, len(rounds))
    often = 1 / all_every if all_every else 0.0
    rate = (1 - often) / len(rounds)
    branches = [
      annotated(functools.partial(_mix, each, axis_name), rate=rate)
      for each in rounds
    ]
    if all_every:
      of_all = (state.rounds + 1) % all_every == 0
      index = jnp.where(of_all, len(rounds), index)
      mean = functools.partial(means, axis_name=axis_name)
      branches.append(annotated(mean, rate=often))
    vectors, rebuild = flat.by_dtype(tree)
    vectors = lax.switch(index, branches, vectors)
    return rebuild(vectors), ExchangeState(state.rounds + 1)

  return Averager(
    lambda tree: ExchangeState(jnp.int32(0)),
    apply,
    agrees=False,
    remembers=False,
    check=rounds_of,
  )


def _mix(stages: Round, axis_name: str, vectors: Any) -> Any:
  """Runs one round on this worker's vectors."""
  for stage in stages:
    received = [
      [lax.ppermute(v, axis_name, list(enumerate(to))) for v in vectors]
      for to in stage
    ]
    vectors = tuple(map(_mean, zip(vectors, *received, strict=True)))
  return vectors


def _mean(vectors: Sequence[Any]) -> Any:
  total: Any = sum(map(flat.wide, vectors))
  return (total / len(vectors)).astype(vectors[0].dtype)


def _exponential(workers: int) -> tuple[Round, ...]:
  shifts = [2**i for i in range(math.ceil(math.log2(workers)))]
  return tuple((_shifts(workers, {shift}),) for shift in shifts or [0])


def _shifts(workers: int, shifts: set[int]) -> Stage:
  """Returns the exchanges i -> i + shift; a shift of 0 sends nothing."""
  return tuple(
    tuple((worker + shift) % workers for worker in range(workers))
    for shift in sorted(shifts - {0})
  )


def _matchings(workers: int) -> tuple[Round, ...]:
  """Returns a round-robin tournament: every two workers meet in one round.

  Workers i and j meet in round r if i + j = r (mod M), where M is N or N - 1,
  whichever is odd. If i = j, the worker meets the last worker if N is even, and
  has no partner if N is odd.
  """
  players = workers - (workers + 1) % 2
  rounds = []
  for r in range(players):
    partners = [(r - worker) % players for worker in range(players)]
    if players < workers:
      alone = next(i for i, partner in enumerate(partners) if i == partner)
      partners[alone] = players
      partners.append(alone)
    rounds.append(((tuple(partners),),) if workers > 1 else ())
  return tuple(rounds)


def _butterfly(workers: int, size: int, seed: int) -> tuple[Round, ...]:
  if workers & (workers - 1):
    raise ValueError(
      f'butterfly groups need a power of two of workers, got {workers}'
    )
  all_bits, bits = workers.bit_length() - 1, size.bit_length() - 1
  return tuple(
    tuple(
      (tuple(worker ^ mask for worker in range(workers)),)
      for mask in butterfly_masks(index, workers, size)
    )
    for index in range(math.lcm(all_bits, bits) // bits)
  )


def butterfly_masks(index: int, workers: int, size: int) -> list[int]:
  """Returns the masks of a butterfly's round, for powers of two.

  A group averages by recursive doubling: for each mask in turn, the workers i
  and i ^ mask take their mean.
  """
  all_bits, bits = workers.bit_length() - 1, size.bit_length() - 1
  return [1 << (index * bits + i) % all_bits for i in range(bits)]


def _partitions(workers: int, size: int, seed: int) -> tuple[Round, ...]:
  rng = np.random.default_rng(seed)
  rounds = []
  for _ in range(PARTITIONS):
    order = rng.permutation(workers)  # A group is `size` workers in a row.
    place = np.argsort(order)
    distances = [2**i for i in range(size.bit_length() - 1)]
    rounds.append(tuple((tuple(order[place ^ d].tolist()),) for d in distances))
  return tuple(rounds)


# Functions from N to the rounds of N workers.
TOPOLOGIES = {
  'exponential': _exponential,
  'ring': lambda n: ((_shifts(n, {1 % n, -1 % n}),),),
  'random': _matchings,
}
PARTITIONINGS = {'butterfly': _butterfly, 'random': _partitions}
