"""Methods that choose when, what, or how precisely workers average.

  python train.py --config=benchmarks/quality/trigger_methods.py:evenly,text

A config file for `benchmarks.quality.triggers`, which compares these methods at
equal bytes. All of them have a budget: the share of local steps, or the same
bytes spent in another way.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

import selsync_jax as ss
from selsync_jax.configs import base, fashion_mnist, stdlib_gpt
from selsync_jax.sync import flat, wires

LSSR = 0.8
"""The share of local steps: averages as often as with a period of 5."""

VETO = -(1 << 16)


class ScoreState(NamedTuple):
  """State of a trigger of `reaching`."""

  inside: Any  # The past that the next score needs.
  score: Any
  sync: Any
  safe: Any


def reaching(
  init: Callable[[Any], Any],
  score: Callable[[Any, Any, Any], tuple[Any, Any]],
  sees_update: bool = False,
) -> ss.Trigger:
  """Synchronizes when the score of any worker reaches a threshold.

  Args:
    init: `init(params)`, the first `inside`.
    score: `score(tree, inside, params) -> (score, inside)`. The tree is the
      gradient, or the applied update with zeros in `inside` after an average.
    sees_update: whether the tree is the applied update.
  """

  def start(params):
    no = jnp.bool(False)
    return ScoreState(init(params), jnp.float32(0), no, no)

  def update(updates, state, params=None, *, threshold=1.0, **extra):
    inside, tree = state.inside, updates
    if sees_update:
      tree = extra.get('applied', updates)
      synced = extra.get('synced', state.sync)
      inside = jax.tree.map(lambda x: jnp.where(synced, 0, x), inside)
    value, inside = score(tree, inside, params)
    flag = jnp.int32(value >= threshold)
    votes = lax.psum(jnp.where(jnp.isnan(value), VETO, flag), ss.AXIS)
    return updates, ScoreState(inside, value, votes > 0, votes >= 0)

  return ss.Trigger(
    start,
    update,
    threshold=1.0,
    compared=lambda state: state.score,
    sees_update=sees_update,
  )


def _largest_change(new: Any, old: Any) -> Any:
  """The largest relative change over arrays; infinite without a past."""
  changes = [
    jnp.where(before > 0, jnp.abs(now - before) / before, jnp.inf)
    for now, before in zip(new, old, strict=True)
  ]
  return jnp.max(jnp.stack(changes))


@ss.register_method
def by_array_change(context, *, smoothing: float = 0.16, lssr: float = LSSR):
  """SelSync's change, array by array; the largest decides."""
  del context

  def score(grads, ewma, params):
    del params
    squares = [jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)]
    pairs = zip(squares, ewma, strict=True)
    new = [
      jnp.where(e > 0, smoothing * s + (1 - smoothing) * e, s) for s, e in pairs
    ]
    return _largest_change(new, ewma), new

  trigger = reaching(
    lambda p: [jnp.float32(0)] * len(jax.tree.leaves(p)), score
  )
  return ss.Strategy(ss.budgeted(trigger, lssr=lssr), ss.mean())


@ss.register_method
def by_momentum(context, *, momentum: float = 0.9, lssr: float = LSSR):
  """The largest relative change of a momentum's norm over arrays.

  References:
    CurvaDion, arXiv 2512.13728, its criterion RMMC, with a budget in place of
    its threshold.
  """
  del context

  def score(grads, old, params):
    del params
    new = jax.tree.map(lambda m, g: momentum * m + g, old, grads)
    norms = [[*map(optax.tree.norm, jax.tree.leaves(m))] for m in (new, old)]
    return _largest_change(*norms), new

  trigger = reaching(optax.tree.zeros_like, score)
  return ss.Strategy(ss.budgeted(trigger, lssr=lssr), ss.mean())


@ss.register_method
def by_drift(context, *, relative: bool = False, lssr: float = LSSR):
  """The distance of any worker from the last average.

  It is the norm over all parameters or, if `relative`, the largest norm of an
  array, divided by the norm of the array's parameters.
  """
  del context

  def score(applied, drift, params):
    drift = optax.tree.add(drift, applied)
    if not relative:
      return optax.tree.norm(drift), drift
    pairs = zip(*map(jax.tree.leaves, (drift, params)), strict=True)
    norm = optax.tree.norm
    shares = [norm(d) / (norm(p) + 1e-6) for d, p in pairs]
    return jnp.max(jnp.stack(shares)), drift

  trigger = reaching(optax.tree.zeros_like, score, sees_update=True)
  return ss.Strategy(ss.budgeted(trigger, lssr=lssr), ss.mean())


@ss.register_method
def by_variance(context, *, variant: str = 'linear', lssr: float = LSSR):
  """FDA with a budget in place of theta."""
  del context
  trigger = ss.budgeted(ss.fda(1.0, variant), lssr=lssr)
  return ss.Strategy(trigger, ss.mean())


@ss.register_method
def evenly(context, *, shortest: int = 4, longest: int = 7, lssr: float = LSSR):
  """SelSync with a budget, and with gaps between two bounds."""
  del context
  budget = ss.budgeted(ss.selsync(1.0), lssr=lssr)
  bounded = ss.any_of(budget, ss.max_interval(longest))
  return ss.Strategy(ss.min_interval(shortest, trigger=bounded), ss.mean())


@ss.register_method
def quadratic(context, *, h_min: int = 4, steps: int = 600, lssr: float = LSSR):
  """QSR, with the alpha that averages as often as the budget allows."""
  rates = np.asarray(jax.vmap(context.learning_rate)(jnp.arange(steps)))
  peak = int(rates.argmax())

  def count(alpha):
    step = found = 0
    while step < steps:
      rate = max(float(rates[max(step, peak)]), 1e-9)
      step += max(h_min, min(steps, int((alpha / rate) ** 2)))
      found += step <= steps
    return found

  low, high = 0.0, 1e3 * float(rates[peak])
  for _ in range(60):
    middle = (low + high) / 2
    enough = count(middle) >= (1 - lssr) * steps
    low, high = (middle, high) if enough else (low, middle)
  trigger = ss.qsr(low or 1e-9, h_min, context.learning_rate)
  return ss.Strategy(trigger, ss.mean())


class BitsState(NamedTuple):
  """State of `_selective_bits`."""

  wire: Any
  usual: Any  # Smoothed distance of the workers from the last average.
  credit: Any  # Averages in the second wire that the budget still allows.
  fine: Any  # Whether the last average was in the second wire.


def _selective_bits(wires, share):
  """Sends a mean in the second wire if the workers have moved unusually far.

  The rest are sent in the first. `share` of the averages may be in the second.
  """
  coarse, fine = wires

  def init(tree):
    zero = jnp.float32(0)
    return BitsState(coarse.init(tree), zero, zero, zero)

  def apply(tree, state):
    moved = optax.tree.sub(tree, _reference(tree, state.wire))
    far = lax.pmean(optax.tree.norm(moved), ss.AXIS)
    credit = state.credit + share
    is_fine = (credit >= 1) & ((far >= state.usual) | (credit >= 2))
    branches = [
      ss.annotated(wire.mean, rate=rate, scale=name)
      for wire, rate, name in (
        (fine, share, 'fine'),
        (coarse, 1 - share, 'coarse'),
      )
    ]
    tree, wire = lax.cond(is_fine, *branches, tree, state.wire)
    usual = jnp.where(state.usual > 0, 0.9 * state.usual + 0.1 * far, far)
    is_fine = jnp.float32(is_fine)
    return tree, BitsState(wire, usual, credit - is_fine, is_fine)

  def metrics(state):
    return {
      'fine': state.fine / share,
      'coarse': (1 - state.fine) / (1 - share),
    }

  return ss.Averager(init, apply, metrics=metrics)


def _reference(tree, wire):
  """The last average that a wire has sent."""
  leaves, treedef = jax.tree.flatten(tree)
  known = iter(wire.reference)
  return treedef.unflatten(
    [next(known) if flat.is_float(x) else x for x in leaves]
  )


@ss.register_method
def by_precision(
  context,
  *,
  period: int = 5,
  coarse: str = 'int2',
  fine: str = 'int8',
  share: float = 1 / 3,
):
  """Averages at a period, in more bits when workers have moved far."""
  del context
  averager = _selective_bits(
    [getattr(wires, w)() for w in (coarse, fine)], share
  )
  return ss.Strategy(ss.every(period), averager)


class ArraysState(NamedTuple):
  """State of `_selective_arrays`."""

  wire: Any
  waited: Any  # Averages since each array traveled.
  credit: Any  # The share of all elements that the budget still allows.
  sent: Any  # The share of all elements that traveled last.


def _selective_arrays(share, in_turn=False):
  """Averages the arrays that have changed most, as far as a budget goes.

  `share` of all elements travels; the array that has changed most waits until
  the budget allows it. If `in_turn`, the longest wait decides.
  """
  wire = wires.int4()

  def init(tree):
    waited = jnp.arange(len(jax.tree.leaves(tree)), dtype=jnp.float32)
    return ArraysState(wire.init(tree), waited, jnp.float32(0), jnp.float32(0))

  def apply(tree, state):
    reference = jax.tree.leaves(_reference(tree, state.wire))
    leaves, treedef = jax.tree.flatten(tree)
    pairs = zip(leaves, reference, strict=True)
    moved = [
      optax.tree.norm(x - r) / (optax.tree.norm(r) + 1e-6) for x, r in pairs
    ]
    change = lax.pmean(jnp.stack(moved), ss.AXIS)
    order = jnp.argsort(-(state.waited if in_turn else change))
    sizes = jnp.array([x.size for x in leaves], jnp.float32)
    shares = (sizes / jnp.sum(sizes))[order]
    credit = state.credit + share
    fits = jnp.cumsum(shares) <= credit + 1e-6
    sent = jnp.sum(jnp.where(fits, shares, 0))
    chosen = jnp.zeros(len(leaves), bool).at[order].set(fits)
    mean = ss.annotated(wire.mean, scale='sent')
    averaged, after = mean(tree, state.wire)

    def kept(new, old):
      pairs = zip(chosen, new, old, strict=True)
      return [jnp.where(c, n, o) for c, n, o in pairs]

    tree = treedef.unflatten(kept(jax.tree.leaves(averaged), leaves))
    after = after._replace(
      reference=kept(after.reference, state.wire.reference),
      error=kept(after.error, state.wire.error),
    )
    waited = jnp.where(chosen, 0, state.waited + 1)
    return tree, ArraysState(after, waited, credit - sent, sent)

  return ss.Averager(
    init, apply, agrees=False, metrics=lambda state: {'sent': state.sent}
  )


@ss.register_method
def send_arrays(context, *, period: int = 1, lssr: float = LSSR):
  """Averages at a period those arrays that have changed most."""
  del context
  averager = _selective_arrays(period * (1 - lssr))
  return ss.Strategy(ss.every(period), averager)


@ss.register_method
def arrays_in_turn(context, *, period: int = 1, lssr: float = LSSR):
  """Averages at a period those arrays that have waited longest."""
  del context
  averager = _selective_arrays(period * (1 - lssr), in_turn=True)
  return ss.Strategy(ss.every(period), averager)


TASKS = 'text', 'text_muon', 'pictures', 'one_label'


def get_config(argument: str = 'evenly,text'):
  """Returns the config of a task: `METHOD,TASK`."""
  method, task = base.split(argument, TASKS)
  if task == 'pictures':
    return fashion_mnist.get_config(method)
  if task == 'one_label':
    return fashion_mnist.get_config(f'{method},noniid')
  config = stdlib_gpt.get_config(f'{method},smoke')
  if task == 'text_muon':
    config.optimizer = stdlib_gpt.get_config('muloco,smoke').optimizer
  return config
