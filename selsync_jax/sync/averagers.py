"""Averagers: what happens to the parameters at a synchronization.

References (with titles in `selsync_jax.methods`):
  McMahan et al., AISTATS 2017 (`subset_mean`).
  Douillard et al., 2023, Algorithm 1 (`outer`: DiLoCo).
  Reddi et al., ICLR 2021, Algorithm 2 (`outer` with Adam: FedAdam).
  Kolehmainen et al., 2025 (`outer` over `gossip`: NoLoCo).
"""

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Int32
import optax

from selsync_jax.config import Fraction
from selsync_jax.sync import resizing
from selsync_jax.sync import traffic
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.part import Metrics
from selsync_jax.sync.part import Part
from selsync_jax.sync.part import part
from selsync_jax.sync.wires import FLOAT32
from selsync_jax.sync.wires import Wire


@dataclasses.dataclass(frozen=True)
class Averager(Part):
  """A rule that combines the workers' parameters at a synchronization.

  Attributes:
    init: `init(tree) -> state`.
    apply: `apply(tree, state) -> (tree, state)`, run on all workers at once
      inside one `lax.cond`, after the local update.
    sends: what a synchronization sends.
    agrees: whether the tree is equal on all workers afterwards.
    averages: whether it changes the tree.
    remembers: whether `apply` depends on the trees of earlier calls.
    rebase: `rebase(tree, state) -> state`, with the tree after another averager
      has moved it on from what `apply` returned.
    check: `check(N)` raises `ValueError` if N workers cannot use it.
    metrics: `metrics(state)`, scalars by name, for the rows of a run.
    resize: the rule for the state of another number of workers; by default
      `resizing.first`.
  """

  init: Callable[[Any], Any]
  apply: Callable[..., tuple[Any, Any]]
  sends: traffic.Sends = traffic.sends_all
  agrees: bool = True
  averages: bool = True
  remembers: bool = True
  rebase: Callable[[Any, Any], Any] = lambda tree, state: state
  check: Callable[[int], Any] = lambda workers: None
  metrics: Metrics = lambda state: {}
  resize: resizing.Resize = resizing.first


@part
def no_averaging() -> Averager:
  """Leaves parameters alone, for methods that average gradients."""
  return Averager(
    lambda tree: (),
    lambda tree, state: (tree, state),
    traffic.sends_nothing,
    agrees=False,
    averages=False,
  )


@part
def mean(*, wire: Wire = FLOAT32) -> Averager:
  """Gives every worker the mean over all workers.

  Args:
    wire: how the mean travels.
  """
  return Averager(
    wire.init,
    wire.mean,
    wire.sends,
    remembers=not wire.exact,
    rebase=wire.rebase,
    metrics=wire.metrics,
    resize=wire.resize,
  )


MEAN = mean()
"""The default averager of other parts."""


class SubsetState(NamedTuple):
  """State of `subset_mean`, equal on all workers but for the wire's error.

  The number of synchronizations so far, with the seed, draws the next subset.
  """

  rounds: Int32[Array, '']
  wire: Any


@part
def subset_mean(
  fraction: Fraction,
  seed: int = 0,
  *,
  wire: Wire = FLOAT32,
  axis_name: str = AXIS,
) -> Averager:
  """Gives every worker the mean over a random subset of the workers.

  In lockstep this also stands for a partial all-reduce, which waits only for a
  quorum: no worker is late here, so a random draw decides who contributes.

  Args:
    fraction: C, the fraction of the workers to average, in (0, 1]. C N is
      rounded, to at least 1.
    seed: the seed of the random draws.
    wire: how the mean travels.
  """

  def apply(tree, state):
    workers = lax.axis_size(axis_name)
    size = max(1, round(fraction * workers))
    key = jax.random.fold_in(jax.random.key(seed), state.rounds)
    rank = jax.random.permutation(key, workers)[lax.axis_index(axis_name)]
    tree, sent = wire.mean(tree, state.wire, where=rank < size, count=size)
    return tree, SubsetState(state.rounds + 1, sent)

  return Averager(
    lambda tree: SubsetState(jnp.int32(0), wire.init(tree)),
    apply,
    wire.sends,
    remembers=not wire.exact,
    metrics=lambda state: wire.metrics(state.wire),
    resize=resizing.fields(rounds=resizing.first, wire=wire.resize),
  )


class OuterState(NamedTuple):
  """State of `outer`, equal on all workers if the averager makes them agree.

  `consensus` is the tree after the last outer step.
  """

  consensus: Any
  opt_state: Any
  averager: Any


@part
def outer(
  optimizer: optax.GradientTransformation, *, averager: Averager = MEAN
) -> Averager:
  """Moves the last consensus by an optimizer step towards the workers' mean.

  The outer gradient is the tree after the last outer step minus the average, so
  `optax.sgd(1.0)` makes this the averager itself: bit for bit where an element
  changes by less than a factor of two, and elsewhere to one ulp.

  Over `gossip` every worker has its own outer parameters and momentum. With SGD
  and momentum that is NoLoCo, whose pull to the partner's outer parameters,
  gamma, then equals the outer learning rate.

  Args:
    optimizer: the outer optimizer; DiLoCo's is
      `optax.sgd(0.7, momentum=0.9, nesterov=True)`.
    averager: what forms the average.
  """

  def init(tree):
    return OuterState(tree, optimizer.init(tree), averager.init(tree))

  def apply(tree, state):
    before, opt_state, own = state
    average, own = averager.apply(tree, own)
    gradient = optax.tree.sub(before, average)
    updates, opt_state = optimizer.update(gradient, opt_state, before)
    moved = optax.apply_updates(before, updates)
    return moved, OuterState(moved, opt_state, averager.rebase(moved, own))

  common = resizing.first if averager.agrees else resizing.mean
  return dataclasses.replace(
    averager,
    init=init,
    apply=apply,
    remembers=True,
    rebase=Averager.rebase,
    metrics=lambda state: averager.metrics(state.averager),
    resize=resizing.fields(
      consensus=common, opt_state=common, averager=averager.resize
    ),
  )
