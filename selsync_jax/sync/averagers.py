"""Averagers: what happens to the parameters at a synchronization.

References (with titles in `selsync_jax.methods`):
  McMahan et al., AISTATS 2017 (`subset_mean`).
  Douillard et al., 2023, Algorithm 1 (`outer`: DiLoCo).
  Reddi et al., ICLR 2021, Algorithm 2 (`outer` with Adam: FedAdam).
  Kolehmainen et al., 2025 (`outer` over `gossip`: NoLoCo).
"""

from collections.abc import Callable
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Int32
import optax

from selsync_jax.config import Fraction
from selsync_jax.sync import flat, resizing, traffic
from selsync_jax.sync.agreement import typed_as, varies_as_any
from selsync_jax.sync.consensus import AXIS, check_averaged, check_by_value
from selsync_jax.sync.part import inside, Metrics, Part, part
from selsync_jax.sync.wires import FLOAT32, Wire


class Piece(NamedTuple):
  """The piece of a tree that an averager works on next.

  Attributes:
    take: `take(tree, state) -> piece`.
    put: `put(tree, piece, state) -> tree`, with the state of `take`.
  """

  take: Callable[[Any, Any], Any]
  put: Callable[[Any, Any, Any], Any]


WHOLE = Piece(lambda tree, state: tree, lambda tree, piece, state: piece)


@dataclasses.dataclass(frozen=True, repr=False)
class Averager(Part):
  """A rule that combines the workers' parameters at a synchronization.

  Attributes:
    init: `init(tree) -> state`.
    apply: `apply(tree, state) -> (tree, state)`, run on all workers at once
      inside one `lax.cond`, after the local update. A loop calls `step`.
    piece: the piece of the tree that `apply` works on; `None` if the piece
      differs between calls, and `apply` takes and returns the whole tree.
    agrees: whether the tree is equal on all workers afterwards.
    agrees_late: whether the tree would be equal if there were no delay.
    averages: whether the averager changes the tree.
    remembers: whether `apply` depends on the trees of earlier calls.
    rebase: `rebase(tree, state) -> state`, called after another averager has
      changed the result of `apply` to `tree` on all workers.
    check: `check(N)` raises `ValueError` if N workers cannot use the averager.
    metrics: `metrics(state)`, scalars by name, for the rows of a run.
    resize: the rule for the state of another number of workers; by default
      `resizing.first`.
    steps_late: the steps from a synchronization to its result; 0 except in
      `delay.Delayed`.
  """

  init: Callable[[Any], Any]
  apply: Callable[..., tuple[Any, Any]]
  _: dataclasses.KW_ONLY
  piece: Piece | None = WHOLE
  agrees: bool = True
  agrees_late: bool = False
  averages: bool = True
  remembers: bool = True
  rebase: Callable[[Any, Any], Any] = lambda tree, state: state
  check: Callable[[int], Any] = lambda workers: None
  metrics: Metrics = lambda state: {}
  resize: resizing.Resize = resizing.first
  steps_late: ClassVar[int] = 0

  def __post_init__(self) -> None:
    """Makes `init` refuse leaves that are not arrays, and type its state."""
    init = self.init

    def checked(tree: Any) -> Any:
      flat.check_arrays(tree)
      return varies_as_any(init(tree), tree)

    object.__setattr__(self, 'init', checked)

  def sends(self, tree: Any, workers: int) -> tuple[traffic.Collective, ...]:
    """Returns the collectives of a synchronization."""
    found = traffic.collectives(
      self.when_due,
      *(tree, jax.eval_shape(self.init, tree)),
      workers=workers,
      axes=self.axes,
      at='sync',
    )
    return tuple(c._replace(late=max(c.late, self.steps_late)) for c in found)

  @property
  def withholds(self) -> bool:
    """Whether a wire inside the averager withholds changes, see `Wire`."""
    return any(isinstance(p, Wire) and p.withholds for p in inside(self))

  def average(self, tree: Any, state: Any) -> tuple[Any, Any]:
    """Returns the whole tree after a synchronization, and the state."""
    take, put = self.piece or WHOLE
    piece, after = self.apply(take(tree, state), state)
    return put(tree, piece, state), after

  def due(self, sync: Any, state: Any) -> Any:
    """Returns whether `when_due` runs at this step."""
    return sync

  def when_due(self, tree: Any, state: Any) -> tuple[Any, Any]:
    """Returns the tree and the state after an average that is `due`."""
    return jax.tree.map(typed_as, self.average(tree, state), (tree, state))

  def depart(self, sync: Any, tree: Any, state: Any) -> tuple[Any, Any]:
    """Returns whether a synchronization begins at this step, and the state.

    It runs at every step, after any `when_due`, and does not communicate.
    """
    return sync, state

  def land(self, tree: Any, state: Any) -> Any:
    """Returns the tree after applying an average in flight, if there is one."""
    return tree

  def step(self, sync: Any, tree: Any, state: Any) -> tuple[Any, Any]:
    """Returns the tree and the state after a step of a custom training loop.

    Args:
      sync: bool [], equal on all workers: `decision(opt_state)`.
      tree: the tree after the local update.
      state: the state after the previous step, or the result of `init`.
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
    agrees=False,
    averages=False,
  )


@part
def mean(*, wire: Wire = FLOAT32) -> Averager:
  """Gives every worker the mean over all workers.

  Args:
    wire: the encoding of the mean.
  """
  return Averager(
    wire.init,
    wire.mean,
    remembers=not wire.exact,
    rebase=wire.rebase,
    resize=wire.resize,
  )


MEAN = mean()
"""The default averager of other parts."""


def check_inside(averager: Averager) -> None:
  """Raises `ValueError` if no other averager can contain this one."""
  if averager.steps_late:
    raise ValueError(
      f'averager {averager} is delayed already; delay the outer averager'
    )
  if not averager.averages:
    raise ValueError(
      f'averager {averager} averages nothing, so no other averager can use it'
    )


class SubsetState(NamedTuple):
  """State of `subset_mean`, equal on all workers except for the wire's error.

  The seed and the number of synchronizations so far determine the next subset.
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

  In lockstep this also simulates a partial all-reduce, which waits only for a
  quorum. No worker is late in lockstep, so the contributors are drawn at
  random.

  Args:
    fraction: C, the fraction of the workers to average, in (0, 1]. C N is
      rounded, to at least 1.
    seed: the seed of the random draws.
    wire: the encoding of the mean.
  """

  def members(workers):
    return max(1, round(fraction * workers))

  def apply(tree, state):
    workers = lax.axis_size(axis_name)
    key = jax.random.fold_in(jax.random.key(seed), state.rounds)
    rank = jax.random.permutation(key, workers)[lax.axis_index(axis_name)]
    count = members(workers)
    tree, own = wire.mean(tree, state.wire, where=rank < count, count=count)
    return tree, SubsetState(state.rounds + 1, own)

  return Averager(
    lambda tree: SubsetState(jnp.int32(0), wire.init(tree)),
    apply,
    remembers=not wire.exact,
    rebase=lambda tree, state: state._replace(
      wire=wire.rebase(tree, state.wire)
    ),
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

  The outer gradient is the tree after the last outer step minus the average. So
  with `optax.sgd(1.0)` the result is the averager's: bit for bit where an
  element changes by less than a factor of two, and elsewhere to one ulp.

  Over `gossip` every worker has its own outer parameters and momentum. With SGD
  and momentum that is NoLoCo, whose pull to the partner's outer parameters,
  gamma, then equals the outer learning rate.

  Args:
    optimizer: the outer optimizer; DiLoCo's is
      `optax.sgd(0.7, momentum=0.9, nesterov=True)`.
    averager: the averager that forms the average.

  Raises:
    ValueError: if the averager is delayed, averages nothing or a piece at a
      time, or remembers each worker's result, which an outer step would change.
  """
  check_inside(averager)
  if averager.piece is not WHOLE:
    raise ValueError(
      f'an outer step moves the whole tree, but averager {averager} averages a '
      'piece of it at a time; put the outer step inside: '
      'fragments(k, averager=outer(...))'
    )
  if averager.remembers and not averager.agrees:
    raise ValueError(
      f"averager {averager} remembers each worker's result, and an outer step "
      'would change it'
    )

  def init(tree):
    opt_state = optimizer.init(flat.floating(tree))
    return OuterState(tree, opt_state, averager.init(tree))

  def apply(tree, state):
    average, own = averager.apply(tree, state.averager)
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

  common = resizing.first if averager.agrees else resizing.mean
  return dataclasses.replace(
    averager,
    init=init,
    apply=apply,
    remembers=True,
    rebase=rebase,
    metrics=lambda state: averager.metrics(state.averager),
    resize=resizing.fields(
      consensus=common, opt_state=common, averager=averager.resize
    ),
  )
