"""Averages that arrive late, while workers take further steps.

A synchronization takes a snapshot. The mean of the snapshots is applied some
steps later, so that it can travel while the workers compute. This module
defines the results, in steps. Transport and time are defined elsewhere.

References (with titles in `selsync_jax.methods.table`):
  Douillard et al., 2025, section 2.3 (`delayed` with `mix`: Streaming DiLoCo,
    whose tau is `steps`, and whose alpha is `mix`).
  LOSCAR-SGD, 2026 (arXiv 2605.20866), the merge rule (`delayed` in its default
    form, over random `fragments`).
  Kale et al., `Eager Updates For Overlapped Communication and Computation in
    DiLoCo`, 2025 (arXiv 2502.12996), Algorithm 2 (`eager_outer`).
"""

from collections.abc import Callable, Mapping
import dataclasses
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32
import numpy as np
import optax

from selsync_jax.config import Count, Probability
from selsync_jax.sync import flat, resizing
from selsync_jax.sync.agreement import typed_as
from selsync_jax.sync.averagers import Averager, WHOLE
from selsync_jax.sync.averagers import mean as mean_of_all
from selsync_jax.sync.consensus import AXIS
from selsync_jax.sync.part import inside, part
from selsync_jax.sync.traffic import annotated
from selsync_jax.sync.wires import FLOAT32, Wire


class DelayedState(NamedTuple):
  """State of `delayed`; the first four are equal on all workers.

  `left` is the number of steps until the mean is applied, 0 if no mean is in
  flight. `asked` says whether a synchronization was requested meanwhile. `age`
  counts the steps since the last snapshot, and `span` the steps between the
  last two snapshots. `before` is the previous mean, `()` if it is not needed.
  """

  left: Int32[Array, '']
  asked: Bool[Array, '']
  age: Int32[Array, '']
  span: Int32[Array, '']
  snapshot: Any
  before: Any
  averager: Any


TRAVEL = 'travel_under_way'


@dataclasses.dataclass(frozen=True, repr=False, kw_only=True)
class Delayed(Averager):
  """An averager whose result is applied some steps later, see `delayed`.

  Attributes:
    arrive: `arrive(tree, state, flown) -> (tree, state)`, which applies the
      average in flight, `flown` steps after its snapshot.
    travel: `travel(*message) -> arrived`, the averager's whole work, with any
      number of communication rounds. It is compiled under the name `TRAVEL`, so
      that a program that carries averages itself can find it.
    forgets: whether a worker loses a part of its progress since the averaged
      snapshot.
  """

  arrive: Callable[[Any, Any, Any], tuple[Any, Any]]
  travel: Callable[..., Any]
  forgets: bool
  steps_late: int  # pyrefly: ignore

  def due(self, sync: Any, state: Any) -> Any:
    """Returns whether an average arrives at this step."""
    return state.left == 1

  def when_due(self, tree: Any, state: Any) -> tuple[Any, Any]:
    """Returns the tree and the state after an average has arrived."""
    new = self.arrive(tree, state, self.steps_late)
    return jax.tree.map(typed_as, new, (tree, state))

  def depart(self, sync: Any, tree: Any, state: Any) -> tuple[Any, Any]:
    """Returns whether an average departs at this step, and the state."""
    left = jnp.maximum(state.left - 1, 0)
    asked, age = state.asked | sync, state.age + 1
    leaves = asked & (left == 0)
    snapshot = lax.cond(
      leaves,
      lambda: (self.piece or WHOLE).take(tree, state.averager),
      lambda: state.snapshot,
    )
    return leaves, state._replace(
      left=jnp.where(leaves, self.steps_late, left),
      asked=asked & ~leaves,
      age=jnp.where(leaves, 0, age),
      span=jnp.where(leaves, age, state.span),
      snapshot=snapshot,
    )

  def message(self, state: Any) -> tuple[Any, Any]:
    """Returns the departing arrays, from the state after `depart`."""
    return state.snapshot, state.averager

  def land(self, tree: Any, state: Any) -> Any:
    """Returns the tree after applying an average in flight, if there is one."""

    def early(tree, state):
      return self.arrive(tree, state, state.age)[0]

    return lax.cond(state.left > 0, early, lambda tree, _: tree, tree, state)


@part
def delayed(
  of: Averager,
  steps: Count,
  *,
  keep: Probability = 1.0,
  extrapolate: Probability = 0.0,
  mix: Probability = 0.0,
) -> Averager:
  """Applies an averager's result some steps after its synchronization.

  Let s be a snapshot, m its result, and m' the previous result, from H steps
  earlier. k steps after the snapshot, a worker's parameters x become

    mix x + (1 - mix) (m + keep (x - s) + extrapolate (k / H) (m - m')).

  A synchronization may be requested while a mean is in flight. Its snapshot is
  then taken when that mean has been applied; several requests become one.

  Args:
    of: the averager that forms the result from the snapshots.
    steps: k, the steps from a synchronization to its result.
    keep: the share of its progress since the snapshot that a worker keeps; 1 is
      the plain form, x + m - s.
    extrapolate: the weight of an extrapolation from the workers' common
      progress in the previous round.
    mix: the share of the worker's own parameters; Streaming DiLoCo's alpha,
      for which `keep` is 0.

  Raises:
    ValueError: if the averager averages nothing, is delayed already, or
      averages a different piece at each call; or if `extrapolate` is positive
      and the averager averages a piece at a time.
  """
  inner = [each for each in inside(of) if isinstance(each, Averager)]
  is_late = any(each.steps_late or each.agrees_late for each in (of, *inner))
  why = is_late and 'it is delayed already'
  why = why or (not of.averages and 'it averages nothing')
  if why or of.piece is None:
    why = why or 'some of its calls average only a piece'
    raise ValueError(f'averager {of} cannot be delayed: {why}')
  if extrapolate and of.piece is not WHOLE:
    raise ValueError(
      f'extrapolate={extrapolate}: averager {of} averages a piece at a time, '
      'and a piece has no progress in the previous round'
    )
  take, put = of.piece

  def init(tree):
    state = of.init(tree)
    zero = jnp.int32(0)
    return DelayedState(
      left=zero,
      asked=jnp.bool(False),
      age=zero,
      span=zero,
      snapshot=take(tree, state),
      before=tree if extrapolate else (),
      averager=state,
    )

  @jax.jit  # Its name, `TRAVEL`, tells islands what to carry.
  def travel_under_way(snapshot, state):
    return of.apply(snapshot, state)

  def apply(tree, state):
    raise ValueError(
      f'averager delayed({of}, {steps}) has work to do at every step, not only '
      'at synchronizations; call averager.step(sync, tree, state), without a '
      'lax.cond around it'
    )

  def arrive(tree, state, flown):
    now = take(tree, state.averager)
    mean, inner = travel_under_way(state.snapshot, state.averager)
    far = flown / state.span.astype(jnp.float32)

    def corrected(x, snapshot, mean, *before):
      new = mean  # A term of weight 0 is left out: it may be NaN.
      if keep:
        new += keep * (x - snapshot)
      if extrapolate:
        new += extrapolate * far * (mean - before[0])
      return mix * x + (1 - mix) * new if mix else new

    before = (state.before,) if extrapolate else ()
    new = _combined(corrected, now, state.snapshot, mean, *before)
    tree = put(tree, new, state.averager)
    before = mean if extrapolate else ()
    return tree, state._replace(before=before, averager=inner)

  def resize(saved, fresh, workers, step):
    # Workers start from their consensus, which includes the average in flight.
    # So the snapshot before that average is the last one.
    age = saved.age + saved.span * (saved.left > 0)
    inner = of.resize(saved.averager, fresh.averager, workers, step)
    common = resizing.first if of.agrees else resizing.mean
    kept = resizing.fields(age=resizing.first, before=common)
    saved, fresh = saved._replace(age=age), fresh._replace(averager=inner)
    return kept(saved, fresh, workers, step)

  return Delayed(
    init,
    apply,
    piece=of.piece,
    agrees=False,
    agrees_late=of.agrees,
    check=of.check,
    metrics=lambda state: of.metrics(state.averager),
    resize=resize,
    steps_late=steps,
    arrive=arrive,
    travel=travel_under_way,
    forgets=keep < 1 and mix < 1,
  )


def _combined(function: Any, *trees: Any, updates: Any = None) -> Any:
  """Maps a function over floating-point leaves, in float32 at least.

  Other leaves are copied from the first tree. Outside of `params` and `copies`,
  a result is clipped at 0 if no argument is below 0: extrapolation could make a
  variance negative. `updates`, of any sign, are a last argument.
  """
  is_mixed = isinstance(trees[0], Mapping) and 'params' in trees[0]

  def combine(path, first, *others):
    if not flat.is_float(first):
      return first
    leaves = [flat.wide(jnp.asarray(leaf)) for leaf in (first, *others)]
    new = function(*leaves)
    if not is_mixed or path[0].key in ('params', 'copies'):
      return new.astype(first.dtype)
    given = leaves[: len(trees)]
    positive = jnp.all(jnp.stack([jnp.min(leaf) for leaf in given]) >= 0)
    return jnp.where(positive & (new < 0), 0, new).astype(first.dtype)

  last = () if updates is None else (updates,)
  return jax.tree.map_with_path(combine, *trees, *last)


def _check_linear(optimizer: optax.GradientTransformation, tree: Any) -> None:
  """Raises `ValueError` if the updates of a sum are not the sum of updates."""

  def second_update(*numbers):
    gradient = jax.tree.map(
      lambda x: jnp.broadcast_to(jnp.array(numbers), (2,) * max(x.ndim, 1)),
      tree,
    )
    params = optax.tree.zeros_like(gradient)
    state = optimizer.init(params)
    for _ in range(2):
      updates, state = optimizer.update(gradient, state, params)
    return np.concatenate([*map(jnp.ravel, jax.tree.leaves(updates)), [0.0]])

  # The numbers are large, so that a clip shows.
  with jax.ensure_compile_time_eval():
    one, other = second_update(1e3, -5e3), second_update(4e3, 1e3)
    both = second_update(5e3, -4e3)
  if (np.abs(one + other - both) > 1e-3 * (np.abs(one) + np.abs(other))).any():
    raise ValueError(
      'eager_outer needs a linear optimizer, such as sgd with any momentum; '
      'with this optimizer, workers would drift apart; use outer'
    )


class EagerState(NamedTuple):
  """State of `eager_outer`, different on each worker.

  `consensus` is the tree after the last outer step. `sent` has the
  floating-point leaves of the change that the worker sent at that step, when
  there were this many `workers`.
  """

  consensus: Any
  sent: Any
  workers: Int32[Array, '']
  opt_state: Any
  averager: Any


@part
def eager_outer(
  optimizer: optax.GradientTransformation,
  *,
  wire: Wire = FLOAT32,
  axis_name: str = AXIS,
) -> Averager:
  """Moves by a worker's own change at once, by the others' a round later.

  The outer gradient is d / N + D' - d' / N. Here d is the worker's change, d'
  its previous change, and D' the mean of all workers' previous changes. The
  term d' / N was applied a round before, with the number of workers then.

  Args:
    optimizer: the outer optimizer. It must be linear (SGD with any momentum):
      otherwise workers would drift apart, and `init` raises `ValueError`. Its
      steps must be small. On a quadratic, SGD with rate r and momentum m
      converges if and only if r kappa (1 - 1/N) < 1 - m. Here kappa is the
      share of the error that the local steps of a round remove.
    wire: the encoding of the mean change.
  """
  averager = mean_of_all(wire=wire)

  def init(tree):
    values = flat.floating(tree)
    _check_linear(optimizer, values)
    zeros = optax.tree.zeros_like(values)
    opt_state, own = optimizer.init(values), averager.init(zeros)
    return EagerState(tree, zeros, jnp.int32(1), opt_state, own)

  def apply(tree, state):
    workers = lax.axis_size(axis_name)
    travel = annotated(averager.apply, late=math.inf)
    mean, inner = travel(state.sent, state.averager)
    # The next change is independent of this one.
    inner = averager.rebase(optax.tree.zeros_like(mean), inner)
    before = flat.floating(state.consensus)
    change = optax.tree.sub(before, flat.floating(tree))
    gradient = jax.tree.map(
      lambda new, old, mean: new / workers + (mean - old / state.workers),
      *(change, state.sent, mean),
    )
    updates, opt_state = optimizer.update(gradient, state.opt_state, before)
    moved = _combined(
      lambda x, before, update: before + update,
      *(tree, state.consensus),
      updates=updates,
    )
    count = workers + 0 * state.workers  # Keeps the type under `shard_map`.
    return moved, EagerState(moved, change, count, opt_state, inner)

  return Averager(
    init,
    apply,
    agrees=False,
    agrees_late=True,
    resize=resizing.fields(
      consensus=resizing.mean,
      sent=resizing.mean,
      workers=resizing.first,
      opt_state=resizing.mean,
      averager=averager.resize,
    ),
  )
