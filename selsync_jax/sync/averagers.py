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
from selsync_jax.sync import flat
from selsync_jax.sync import resizing
from selsync_jax.sync import traffic
from selsync_jax.sync.agreement import varies_as_any
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.consensus import check_averaged
from selsync_jax.sync.consensus import check_by_value
from selsync_jax.sync.part import Metrics
from selsync_jax.sync.part import Part
from selsync_jax.sync.part import part
from selsync_jax.sync.wires import FLOAT32
from selsync_jax.sync.wires import Wire


class Piece(NamedTuple):
  """The piece of a tree that an averager is about next.

  Attributes:
    take: `take(tree, state) -> piece`.
    put: `put(tree, piece, state) -> tree`, with the state of `take`.
  """

  take: Callable[[Any, Any], Any]
  put: Callable[[Any, Any, Any], Any]


WHOLE = Piece(lambda tree, state: tree, lambda tree, piece, state: piece)


class Halves(NamedTuple):
  """An averager in two halves, between which a message travels.

  Only `travel` communicates, so steps may pass before it. The tree is that of
  `start` in both halves, or the piece of it that the averager is about.

  Attributes:
    start: `start(tree, state) -> (message, state)`.
    travel: `travel(message) -> mean`: what all messages amount to.
    finish: `finish(tree, mean, state) -> (tree, state)`.
    piece: what they are about.
  """

  start: Callable[[Any, Any], tuple[Any, Any]]
  travel: Callable[[Any], Any]
  finish: Callable[[Any, Any, Any], tuple[Any, Any]]
  piece: Piece = WHOLE

  def apply(self, tree: Any, state: Any) -> tuple[Any, Any]:
    """Returns the tree after an average, and the state."""
    part = self.piece.take(tree, state)
    message, started = self.start(part, state)
    part, finished = self.finish(part, self.travel(message), started)
    return self.piece.put(tree, part, state), finished


class UnderWay(NamedTuple):
  """How a delayed mean travels, for a program that carries it itself.

  Attributes:
    message: `message(state) -> message`, with the state after the step in which
      the synchronization began.
    travel: `travel(message) -> mean`, compiled under the name `TRAVEL`, by
      which such a program finds it.
  """

  message: Callable[[Any], Any]
  travel: Callable[[Any], Any]


TRAVEL = 'travel_under_way'


@dataclasses.dataclass(frozen=True, repr=False)
class Averager(Part):
  """A rule that combines the workers' parameters at a synchronization.

  Attributes:
    init: `init(tree) -> state`.
    apply: `apply(tree, state) -> (tree, state)`, run on all workers at once
      inside one `lax.cond`, after the local update. A loop calls `step`.
    sends: what a synchronization sends.
    agrees: whether the tree is equal on all workers afterwards.
    agrees_late: whether it would be, if the average were not late.
    averages: whether it changes the tree.
    remembers: whether `apply` depends on the trees of earlier calls.
    whole: whether it averages the whole tree at each call.
    forgets: whether a worker loses a part of its progress since the snapshot
      that was averaged.
    withholds: whether its wire does, see `Wire`.
    rebase: `rebase(tree, state) -> state`, with the tree of all workers after
      another averager has moved it on from what `apply` returned.
    check: `check(N)` raises `ValueError` if N workers cannot use it.
    metrics: `metrics(state)`, scalars by name, for the rows of a run.
    resize: the rule for the state of another number of workers; by default
      `resizing.first`.
    halves: the two halves of `apply`, or why it cannot be delayed.
    delay: steps from a synchronization to `arrive`.
    arrive: what runs in place of `apply` if there is a delay, else `None`.
    due: `due(sync, state)`, whether `when_due` runs at a step; with a delay it
      is a later step than that of the synchronization.
    depart: `depart(sync, tree, state) -> (departs, state)`, run at every step
      after `when_due`: whether a synchronization begins. It has no
      communication.
    land: `land(tree, state) -> tree`, with what is on its way applied.
    under_way: how a delayed mean travels; `None` without a delay.
  """

  init: Callable[[Any], Any]
  apply: Callable[..., tuple[Any, Any]]
  sends: traffic.Sends = traffic.sends_all
  agrees: bool = True
  agrees_late: bool = False
  averages: bool = True
  remembers: bool = True
  whole: bool = True
  forgets: bool = False
  withholds: bool = False
  rebase: Callable[[Any, Any], Any] = lambda tree, state: state
  check: Callable[[int], Any] = lambda workers: None
  metrics: Metrics = lambda state: {}
  resize: resizing.Resize = resizing.first
  halves: Halves | str = 'it is not written in two halves'
  delay: int = 0
  arrive: Callable[..., tuple[Any, Any]] | None = None
  due: Callable[[Any, Any], Any] = lambda sync, state: sync
  depart: Callable[[Any, Any, Any], tuple[Any, Any]] = (
    lambda sync, tree, state: (sync, state)
  )
  land: Callable[[Any, Any], Any] = lambda tree, state: tree
  under_way: UnderWay | None = None

  def __post_init__(self) -> None:
    """Makes `init` refuse leaves that are not arrays, and type its state."""
    init = self.init

    def checked(tree: Any) -> Any:
      flat.check_arrays(tree)
      return varies_as_any(init(tree), tree)

    object.__setattr__(self, 'init', checked)

  @property
  def when_due(self) -> Callable[..., tuple[Any, Any]]:
    """The function of (tree, state) that runs at a step that is `due`."""
    return self.arrive or self.apply

  def step(self, sync: Any, tree: Any, state: Any) -> tuple[Any, Any]:
    """Returns the tree and the state after a step of a loop of your own.

    Args:
      sync: bool [], equal on all workers: `decision(opt_state)`.
      tree: the tree after the local update.
      state: that of the step before, or of `init`.
    """
    sync = check_averaged(sync, tree)
    return self.departing_step(sync, tree, state)[1:]

  def departing_step(
    self, sync: Any, tree: Any, state: Any
  ) -> tuple[Any, Any, Any]:
    """Returns whether a synchronization begins, and the results of `step`."""
    check_by_value(tree)
    tree, state = lax.cond(
      self.due(sync, state), self.when_due, lambda *same: same, tree, state
    )
    departs, state = self.depart(sync, tree, state)
    return departs, tree, state


@part
def no_averaging() -> Averager:
  """Leaves parameters alone, for methods that average gradients."""
  return Averager(
    lambda tree: (),
    lambda tree, state: (tree, state),
    traffic.sends_nothing,
    agrees=False,
    averages=False,
    halves='it averages nothing',
  )


@part
def mean(*, wire: Wire = FLOAT32) -> Averager:
  """Gives every worker the mean over all workers.

  Args:
    wire: how the mean travels.
  """
  halves = Halves(wire.start, wire.travel, wire.finish)
  return Averager(
    wire.init,
    halves.apply,
    wire.sends,
    remembers=not wire.exact,
    withholds=wire.withholds,
    rebase=wire.rebase,
    metrics=wire.metrics,
    resize=wire.resize,
    halves=halves,
  )


MEAN = mean()
"""The default averager of other parts."""


def check_inside(averager: Averager) -> None:
  """Raises `ValueError` if no other averager can hold this one."""
  if averager.delay:
    raise ValueError(
      f'averager {averager} is delayed already; delay what holds it'
    )
  if not averager.averages:
    raise ValueError(
      f'averager {averager} averages nothing, so no other averager can hold it'
    )


def around(
  averager: Averager,
  own: Callable[[Any], Any],
  keep: Callable[[Any, Any], Any],
  end: Callable[[Any, Any, Any], tuple[Any, Any]],
  piece: Piece = WHOLE,
) -> tuple[Callable[[Any, Any], tuple[Any, Any]], Halves | str]:
  """Returns `apply` and `halves` of an averager around another one.

  Args:
    averager: the other one.
    own: `own(state)`, its state.
    keep: `keep(state, own)`, the state with its new one.
    end: `end(tree, own, state) -> (tree, state)`, what follows its average.
    piece: what its trees are of the whole.

  Raises:
    ValueError: if the other one is delayed or averages nothing.
  """
  check_inside(averager)

  def apply(tree, state):
    part = averager.apply(piece.take(tree, state), own(state))
    part, new = end(*part, state)
    return piece.put(tree, part, state), new

  inner = averager.halves
  if isinstance(inner, str):
    return apply, inner
  if inner.piece is not WHOLE:
    return apply, f'it holds {averager}, which averages a piece'

  def start(tree, state):
    message, new = inner.start(tree, own(state))
    return message, keep(state, new)

  def finish(tree, mean, state):
    return end(*inner.finish(tree, mean, own(state)), state)

  return apply, Halves(start, inner.travel, finish, piece)


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

  def members(workers):
    return max(1, round(fraction * workers))

  def start(tree, state):
    workers = lax.axis_size(axis_name)
    key = jax.random.fold_in(jax.random.key(seed), state.rounds)
    rank = jax.random.permutation(key, workers)[lax.axis_index(axis_name)]
    drawn = rank < members(workers)
    message, started = wire.start(tree, state.wire)
    started = optax.tree.where(drawn, started, state.wire)
    return (drawn, message), state._replace(wire=started)

  def travel(message):
    drawn, message = message
    count = members(lax.axis_size(axis_name))
    return wire.travel(message, where=drawn, count=count)

  def finish(tree, mean, state):
    tree, own = wire.finish(tree, mean, state.wire)
    return tree, SubsetState(state.rounds + 1, own)

  halves = Halves(start, travel, finish)
  return Averager(
    lambda tree: SubsetState(jnp.int32(0), wire.init(tree)),
    halves.apply,
    wire.sends,
    remembers=not wire.exact,
    withholds=wire.withholds,
    rebase=lambda tree, state: state._replace(
      wire=wire.rebase(tree, state.wire)
    ),
    metrics=lambda state: wire.metrics(state.wire),
    resize=resizing.fields(rounds=resizing.first, wire=wire.resize),
    halves=halves,
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

  Raises:
    ValueError: if the averager is delayed, averages nothing or a piece at a
      time, or remembers what each worker had after it: an outer step would
      change that.
  """
  check_inside(averager)
  if not averager.whole:
    raise ValueError(
      f'an outer step moves the whole tree, and averager {averager} averages a '
      'piece of it at a time; put the outer step inside: '
      'fragments(k, averager=outer(...))'
    )
  if averager.remembers and not averager.agrees:
    raise ValueError(
      f'averager {averager} remembers what each worker had after it, and an '
      'outer step would change that'
    )

  def init(tree):
    opt_state = optimizer.init(flat.floating(tree))
    return OuterState(tree, opt_state, averager.init(tree))

  def step(average, own, state):
    before = flat.floating(state.consensus)
    gradient = optax.tree.sub(before, flat.floating(average))
    updates, opt_state = optimizer.update(gradient, state.opt_state, before)
    moved = jax.tree.map(
      lambda leaf, new: leaf if new is None else new,
      *(average, optax.apply_updates(before, updates)),
    )
    own = averager.rebase(moved, own)
    return moved, OuterState(moved, opt_state, own)

  def rebase(tree, state):
    own = averager.rebase(tree, state.averager)
    return state._replace(consensus=tree, averager=own)

  apply, halves = around(
    averager,
    lambda state: state.averager,
    lambda state, own: state._replace(averager=own),
    step,
  )
  common = resizing.first if averager.agrees else resizing.mean
  return dataclasses.replace(
    averager,
    init=init,
    apply=apply,
    halves=halves,
    remembers=True,
    rebase=rebase,
    metrics=lambda state: averager.metrics(state.averager),
    resize=resizing.fields(
      consensus=common, opt_state=common, averager=averager.resize
    ),
  )
