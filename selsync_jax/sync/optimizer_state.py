"""Policies for the state of the local optimizers at a synchronization.

The state of an optax optimizer is a tree whose innermost named tuples each
belong to one transformation: `ScaleByAdamState(count, mu, nu)`,
`TraceState(trace)`. Their floating-point fields are called moments here.

References:
  Lin et al., ICLR 2020, section on local and global momentum (`local`, `mean`).
  Douillard et al., `DiLoCo`, 2023, section 4 (`local`: averaging the inner
    optimizers' state costs three times the bytes and gains nothing there).
  Iacob et al., `DES-LOC`, ICLR 2026 (`mean`, with `every`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from selsync_jax.config import Count
from selsync_jax.sync import flat, resizing
from selsync_jax.sync.part import Metrics, Part, part
from selsync_jax.sync.traffic import annotated, Collective, collectives
from selsync_jax.sync.wires import FLOAT32, Wire


@dataclasses.dataclass(frozen=True, repr=False)
class Moments(Part):
  """A policy for the optimizer's state at a synchronization.

  Attributes:
    init: `init(opt_state) -> state`.
    apply: `apply(opt_state, fresh, state) -> (opt_state, state)`, run inside
      the `lax.cond` of a synchronization; `fresh` is the optimizer's state
      before the first step.
    averages: whether the policy averages moments over all workers.
    changes: whether the policy changes the optimizer's state.
    metrics: `metrics(state)`, scalars by name, for the rows of a run.
    resize: the rule for the state of another number of workers; by default
      `resizing.first`.
  """

  init: Callable[[Any], Any]
  apply: Callable[[Any, Any, Any], tuple[Any, Any]]
  _: dataclasses.KW_ONLY
  averages: bool = False
  changes: bool = True
  metrics: Metrics = lambda state: {}
  resize: resizing.Resize = resizing.first

  def sends(self, opt_state: Any, workers: int) -> tuple[Collective, ...]:
    """Returns the collectives of a synchronization."""
    if not self.changes:
      return ()
    state = jax.eval_shape(self.init, opt_state)
    return collectives(
      self.apply,
      *(opt_state, opt_state, state),
      workers=workers,
      axes=self.axes,
      at='sync',
    )


@part
def local() -> Moments:
  """Keeps each worker's own optimizer state."""
  return _policy((), ())


@part
def mean(
  *,
  only: Sequence[str] | None = None,
  every: Mapping[str, Count] | None = None,
  wire: Wire | None = None,
) -> Moments:
  """Averages moments over all workers.

  In int8 a second moment could be rounded to zero while the first moment is
  not, and the next step would be huge. So that wire is a `ValueError`.

  Args:
    only: the names of the moments to average, such as `mu`; `None` means all.
    every: periods by name of a moment, counted in averages of the parameters.
      With 3 for `mu`, every third average includes `mu`. Moments without a
      period are included in each.
    wire: the encoding of the mean. `None` is the averager's wire in a method,
      or bfloat16 if that wire could round a moment to zero; elsewhere float32.
  """
  if not every:
    return _policy(only, (), wire)
  for name in every:
    if only is not None and name not in only:
      raise ValueError(f'every={every!r}: {name!r} is not in only={only!r}')
  return _by_period(only, every, wire)


@part
def reset(*, only: Sequence[str] | None = None) -> Moments:
  """Resets moments to their values before the first step.

  If all moments of a transformation are reset, so is its count of steps, which
  Adam needs to correct their bias. The step of the schedule is kept.

  Args:
    only: the names of the moments to reset, such as `trace`; `None` means all.
  """
  return _policy((), only)


def _policy(
  averaged: Sequence[str] | None,
  cleared: Sequence[str] | None,
  wire: Wire | None = None,
) -> Moments:
  """Averages or resets moments; `None` means all, `()` none."""
  wire = _checked(wire)

  def init(opt_state):
    _check(opt_state, cleared or ())
    moments = _select(opt_state, averaged)
    return wire.init(moments) if moments else ()

  def apply(opt_state, fresh, state):
    opt_state = _reset(opt_state, fresh, cleared)
    if moments := _select(opt_state, averaged):
      moments, state = wire.mean(moments, state)
      opt_state = _insert(opt_state, averaged, moments)
    return opt_state, state

  def resize(saved, fresh, workers, step):
    return wire.resize(saved, fresh, workers, step) if saved else fresh

  averages = averaged is None or len(averaged) > 0
  resets = cleared is None or len(cleared) > 0
  return Moments(
    init, apply, averages=averages, changes=averages or resets, resize=resize
  )


class PeriodsState(NamedTuple):
  """State of `mean` with `every`; `averages` is equal on all workers."""

  averages: Int32[Array, '']  # The averages of the parameters so far.
  wires: tuple[Any, ...]  # By period, ascending.


def _by_period(
  only: Sequence[str] | None, every: Mapping[str, int], wire: Wire | None
) -> Moments:
  """Averages the moments of each period in a `lax.cond` of their own."""
  wire = _checked(wire)

  def groups(opt_state: Any) -> Iterator[tuple[int, list[str]]]:
    """Yields each period, and the names of its moments."""
    _check(opt_state, [*every, *(only or ())])
    names = _names(opt_state) if only is None else only
    for k in sorted({every.get(name, 1) for name in names}):
      yield k, [name for name in names if every.get(name, 1) == k]

  def init(opt_state):
    moments = (_select(opt_state, names) for _, names in groups(opt_state))
    return PeriodsState(jnp.int32(0), tuple(map(wire.init, moments)))

  def apply(opt_state, fresh, state):
    del fresh
    averages, wires = state.averages + 1, []
    for (k, names), own in zip(groups(opt_state), state.wires, strict=True):
      send = annotated(wire.mean, rate=1 / k, scale=_metric(k))
      moments, own = lax.cond(
        averages % k == 0,
        send,
        lambda *same: same,
        *(_select(opt_state, names), own),
      )
      opt_state = _insert(opt_state, names, moments)
      wires.append(own)
    return opt_state, PeriodsState(averages, tuple(wires))

  def metrics(state):
    return {
      name: k * jnp.float32(state.averages % k == 0)
      for k in every.values()
      if (name := _metric(k))
    }

  def resize(saved, fresh, workers, step):
    wires = resizing.each([wire.resize] * len(saved.wires))
    rule = resizing.fields(averages=resizing.first, wires=wires)
    return rule(saved, fresh, workers, step)

  return Moments(init, apply, averages=True, metrics=metrics, resize=resize)


def _metric(period: int) -> str | None:
  """Returns the `scale` of a message that is not sent at each average."""
  return f'moments_every_{period}' if period > 1 else None


def _checked(wire: Wire | None) -> Wire:
  """Returns the wire, or raises `ValueError` if it may lose small moments."""
  wire = wire or FLOAT32
  if wire.coarse:
    raise ValueError(
      f'wire {wire.recipe} could round a second moment to 0; use bfloat16'
    )
  return wire


def _is_innermost(node: Any) -> bool:
  """Returns whether a node is a named tuple without named tuples inside."""

  def named(value):
    # optax.MaskedNode, which stands for a masked leaf, has no fields.
    return isinstance(value, tuple) and bool(getattr(value, '_fields', ()))

  inside = jax.tree.leaves(tuple(node) if named(node) else node, is_leaf=named)
  return named(node) and not any(map(named, inside))


def _moments(node: Any, names: Sequence[str] | None) -> list[str]:
  """Returns the fields of a transformation that are moments in `names`."""
  fields = node._asdict() if _is_innermost(node) else {}
  return [
    name
    for name, value in fields.items()
    if flat.floats(value) and (names is None or name in names)
  ]


def _check(opt_state: Any, names: Sequence[str]) -> None:
  """Raises `ValueError` for a name that is not a moment of the optimizer."""
  known = _names(opt_state)
  for name in names:
    if name not in known:
      listed = ', '.join(known) or 'none'
      raise ValueError(
        f'{name!r} is not a moment of this optimizer, which has {listed}'
      )


def _names(opt_state: Any) -> list[str]:
  """Returns the names of an optimizer's moments, in alphabetical order."""
  states = jax.tree.leaves(opt_state, is_leaf=_is_innermost)
  return sorted({name for state in states for name in _moments(state, None)})


def _select(opt_state: Any, names: Sequence[str] | None) -> list[Any]:
  """Returns the named moments, or all, of each transformation in turn."""
  _check(opt_state, names or ())
  return [
    getattr(node, name)
    for node in jax.tree.leaves(opt_state, is_leaf=_is_innermost)
    for name in _moments(node, names)
  ]


def _insert(
  opt_state: Any, names: Sequence[str] | None, values: list[Any]
) -> Any:
  """Replaces the moments that `_select` finds."""
  rest = iter(values)

  def replaced(node):
    wanted = _moments(node, names)
    return node._replace(**{n: next(rest) for n in wanted}) if wanted else node

  return jax.tree.map(replaced, opt_state, is_leaf=_is_innermost)


def _reset(opt_state: Any, fresh: Any, names: Sequence[str] | None) -> Any:
  """Replaces the named moments, or all, by the moments of `fresh`."""

  def replaced(node, new):
    moments, wanted = _moments(node, None), _moments(node, names)
    if wanted == moments:
      return new if moments else node
    return node._replace(**{n: getattr(new, n) for n in wanted})

  return jax.tree.map(replaced, opt_state, fresh, is_leaf=_is_innermost)
