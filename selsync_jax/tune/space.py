"""What a search may choose, for each of its methods.

The values of a field are a range around the config's own value, or the names
that its constructor accepts. A file can set others.
"""

import bisect
from collections.abc import (
  Callable,
  Container,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
import math
from typing import Any, NamedTuple
import zlib

import ml_collections

from selsync_jax import methods
from selsync_jax.config import ConfigError
from selsync_jax.config import rule
from selsync_jax.training.settings import Settings
from selsync_jax.tune.choices import ALL
from selsync_jax.tune.choices import Choice
from selsync_jax.tune.choices import Choices
from selsync_jax.tune.choices import OWN
from selsync_jax.tune.choices import Range

WIDTH = 4.0
"""A range is from the config's own value by this, to that times this."""

RATE = 'optimizer.learning_rate'

_PARTS: dict[str, Choices] = {
  'wire': {'sync.wire': (OWN, 'bfloat16', 'int8', 'int4')},
  'delay': {
    'sync.delay': (OWN, 1, 2, 4, 8),
    'sync.delay.own': (OWN, 0.5),
    'sync.delay.ahead': (OWN, 0.5),
  },
  'optimizer_state': {'sync.optimizer_state': (OWN, 'mean', 'reset')},
  'trigger': {
    'sync.trigger': (OWN, 'selsync'),
    'sync.trigger.delta': Range(0.1, 1.0),
  },
}
OF_AVERAGES = frozenset(field for each in _PARTS.values() for field in each)
"""Fields of averages of parameters."""
_REPLACED = {'sync.period': 'sync.trigger'}
"""Fields that say nothing once another one is chosen."""
_COARSE = 'int4', 'int8'
_LSSRS = (OWN, 0.5, 0.75, 0.9, 0.95, 0.98)


Load = Callable[[str, Mapping[str, Any]], Settings]
"""`load(method, fields)`: the checked settings of a method, with some fields
changed; a `ConfigError` if they cannot be."""


class Space(NamedTuple):
  """What may be chosen for each method.

  A method is `NAME`, or `NAME+FIELD=VALUE+...` as in a comparison.
  """

  choices: Mapping[str, Choices]  # By method.
  own: Mapping[str, Mapping[str, Any]]  # The config's values of these fields.

  @property
  def digest(self) -> str:
    """A short text that differs for another space."""
    return f'{zlib.crc32(repr(self.choices).encode()):08x}'

  def suggest(self, trial: Any) -> tuple[str, dict[str, Any]]:
    """Lets a trial of Optuna choose; returns a method and its fields.

    Real numbers of a range have two significant digits, more where that would
    leave the range. Fields that stay as the config has them are left out, and
    so are those that say nothing beside the others.
    """
    method = trial.suggest_categorical('method', list(self.choices))
    fields, own, choices = {}, self.own[method], self.choices[method]
    for field, choice in choices.items():
      part = _part(field, choices)
      is_idle = part != field and part not in fields
      if is_idle or _REPLACED.get(field) in fields:
        continue
      value = _suggest(trial, self.name(method, field), choice)
      if value not in (OWN, own[field]):
        fields[field] = _rounded(value, choice)
    return method, fields

  def name(self, method: str, field: str) -> str:
    """Returns the name of a choice for Optuna.

    It is the field, for all methods that choose it from the same values as the
    first one that has it.
    """
    choice = self.choices[method][field]
    every = (each[field] for each in self.choices.values() if field in each)
    return field if next(every) == choice else f'{method}: {field}'

  def as_it_is(self, method: str) -> dict[str, Any]:
    """Returns the choices, by name, that leave a method as the config has it.

    A field is left out if the config's value is not among the choices.
    """
    found: dict[str, Any] = {'method': method}
    for field, choice in self.choices[method].items():
      own, name = self.own[method][field], self.name(method, field)
      for value in OWN, own:
        if name not in found and _holds(choice, value):
          found[name] = value
    return found

  def densest(
    self, method: str, fits: Callable[[Mapping[str, Any]], bool]
  ) -> Iterator[dict[str, Any]]:
    """Yields choices, by name, that average as often as a budget lets.

    The averages are in int4 or int8, the coarsest that may be chosen: many
    coarse ones are worth more than few fine ones (docs/evidence.md). The
    learning rate is the config's, and twice that. All else is as the config has
    it. Nothing is yielded of a method that exceeds the budget with any value.

    Args:
      method: one whose `sync.period` or `sync.lssr` may be chosen.
      fits: whether the method with some fields is within the budget.
    """
    choices = self.choices[method]
    wires = [w for w in _COARSE if _holds(choices.get('sync.wire', ()), w)]
    changed = {'sync.wire': wires[0]} if wires else {}
    for field in 'sync.period', 'sync.lssr':
      own = self.own[method].get(field)
      values = _ascending(choices.get(field, ()), own)
      least = bisect.bisect_left(
        values, True, key=lambda value: fits({**changed, field: value})
      )
      if least < len(values):
        found = changed | {field: values[least]}
        named = {
          self.name(method, f): v if _holds(choices[f], v) else OWN
          for f, v in found.items()
        }
        yield (same := self.as_it_is(method) | named)
        rate = 2 * self.own[method].get(RATE, math.inf)
        if _holds(choices.get(RATE, ()), rate):
          yield same | {self.name(method, RATE): rate}


def _part(field: str, choices: Container[str]) -> str:
  """Returns the part that must be chosen for a field of it to count.

  Of a field that counts by itself, that is the field.
  """
  ends = (end for end, sign in enumerate(field) if sign == '.')
  parts = [field[:end] for end in ends if field[:end] in choices]
  return parts[-1] if parts else field


def _holds(choice: Choice, value: Any) -> bool:
  """Returns whether a value is among those of a choice."""
  if isinstance(choice, Range):
    is_number = isinstance(value, int | float)
    return is_number and choice.low <= value <= choice.high
  return value in choice


def _ascending(choice: Choice, own: Any) -> Sequence[Any]:
  """Returns the numbers of a choice; of two digits after the point, if real."""
  if not isinstance(choice, Range):
    values = {own if value == OWN else value for value in choice} - {None}
    return sorted(values)
  if choice.is_whole:
    return range(int(choice.low), int(choice.high) + 1)
  low, high = math.ceil(100 * choice.low), math.floor(100 * choice.high)
  return [hundredth / 100 for hundredth in range(low, high + 1)]


def _suggest(trial: Any, name: str, choice: Choice) -> Any:
  if not isinstance(choice, Range):
    return trial.suggest_categorical(name, choice)
  if choice.is_whole:
    return trial.suggest_int(name, choice.low, choice.high, log=choice.log)
  return trial.suggest_float(name, choice.low, choice.high, log=choice.log)


def _rounded(value: Any, choice: Choice) -> Any:
  """Returns a real number of a range with few digits; others as they are."""
  if not isinstance(choice, Range) or choice.is_whole:
    return value
  each = (float(f'{value:.{digits}g}') for digits in range(2, 17))
  return next((x for x in each if _holds(choice, x)), value)


def _own(config: ml_collections.ConfigDict, field: str) -> Any:
  """Returns the value of a field; `None` if it is not set."""
  node: Any = config
  for name in field.split('.'):
    node = node.get(name) if hasattr(node, 'get') else None
  return node


def build(
  specs: Sequence[str],
  load: Load,
  fixed: Container[str],
  given: Mapping[str, Choices],
) -> Space:
  """Returns the space of some methods.

  Args:
    specs: the methods.
    load: see `Load`.
    fixed: fields that the command line sets, which no trial changes.
    given: the choices of a file, by method or `ALL`; they replace those around
      the config's values.

  Raises:
    ConfigError: if a method refuses a value of its own choices. Of those for
      all methods, values are left out that a method refuses.
  """
  choices: dict[str, Choices] = {}
  values: dict[str, dict[str, Any]] = {}
  for spec in specs:
    settings, own = load(spec, {}), given.get(spec, {})
    named = {_root(field) for field in given.get(ALL, {}) | own}
    around = {k: v for k, v in _around(settings) if _root(k) not in named}
    every = around | given.get(ALL, {}) | own
    load_with = _with_parts(load, every)
    for field, choice in own.items():
      for value in _ends(choice):
        load_with(spec, {field: value})
    set_here = {field.partition('=')[0] for field in spec.split('+')[1:]}
    free = {}
    for field, choice in every.items():
      if field in fixed or {field, f'{field}.name'} & set_here:
        continue
      if field not in own:
        choice = _accepted(load_with, spec, field, choice)
      if choice is not None:
        free[field] = choice
    choices[spec] = _arranged(free, named)
    values[spec] = {f: _own(settings.config, f) for f in choices[spec]}
  return Space(choices, values)


def _arranged(choices: Choices, named: Container[str]) -> Choices:
  """Returns choices so that each comes after those that say if it counts.

  That is a part before its fields, and what replaces a field before that one.
  Where there is no such field, nothing replaces it, unless a file names it.
  """
  lost = {
    part
    for field, part in _REPLACED.items()
    if field not in choices and part not in named
  }
  order = sorted(choices, key=lambda k: (k.count('.'), k in _REPLACED))
  return {field: choices[field] for field in order if _root(field) not in lost}


def _root(field: str) -> str:
  """Returns the part of `sync` that a field belongs to, or the field."""
  section, *names = field.split('.')
  return f'{section}.{names[0]}' if names and names[0] in _PARTS else field


def _with_parts(load: Load, choices: Choices) -> Load:
  """Returns a `load` of one field that chooses what it needs of its part.

  That is the part itself, and the fields that the part cannot do without.
  """

  def load_with(spec, fields):
    (field,) = fields
    part = _part(field, choices)
    needed = {
      other: value
      for other, choice in choices.items()
      if other != field and _part(other, choices) == part
      if other == part or not _holds(choice, OWN)
      for value in _ends(choice)[:1]
    }
    return load(spec, needed | fields)

  return load_with


def check_used(
  spaces: Iterable[Space], load: Load, fixed: Container[str], choices: Choices
) -> None:
  """Raises `ConfigError` for a choice for all that all methods refuse.

  Args:
    spaces: spaces that were built with these choices.
    load: see `Load`.
    fixed: see `build`.
    choices: those of `ALL`.
  """
  every = {spec: own for space in spaces for spec, own in space.choices.items()}
  *_, last = every
  load_with = _with_parts(load, choices)
  for field, choice in choices.items():
    if field not in fixed and not any(field in own for own in every.values()):
      for value in _ends(choice):
        load_with(last, {field: value})  # It says what is wrong.


def _ends(choice: Choice) -> Sequence[Any]:
  """Returns the values of a choice that show whether a config accepts it."""
  if isinstance(choice, Range):
    return choice.low, choice.high
  return [value for value in choice if value != OWN]


def _doublings(choice: Range) -> tuple[int, ...]:
  """Returns the doublings of the low end of whole numbers; others have none."""
  if not choice.is_whole or choice.low <= 0:
    return ()
  low, high = int(choice.low), int(choice.high)
  return tuple(low << k for k in range((high // low).bit_length()))


def _accepted(
  load: Load, spec: str, field: str, choice: Choice
) -> Choice | None:
  """Returns the part of a choice that a method accepts, if there is one."""

  def accepts(value):
    try:
      load(spec, {field: value})
    except ConfigError:
      return False
    return True

  if isinstance(choice, Range):
    if all(map(accepts, _ends(choice))):
      return choice
    choice = _doublings(choice)
  kept = tuple(value for value in choice if value == OWN or accepts(value))
  return kept if kept not in ((), (OWN,)) else None


def _around(settings: Settings) -> Iterator[tuple[str, Choice]]:
  """Yields the fields that a search varies, each with its choice."""
  config = settings.config
  yield from _wide(RATE, config.optimizer.learning_rate)
  length = 'epochs' if config.steps is None else 'steps'
  longest = config[length]
  shortest = type(longest)(longest / WIDTH)
  if 0 < shortest < longest:
    yield length, Range(shortest, longest)
  if warmup := config.schedule.warmup_epochs:
    yield 'schedule.warmup_epochs', Range(0.0, 2.0 * warmup, log=False)
  yield from _of_method(config.sync)


def _of_method(
  sync: ml_collections.ConfigDict,
) -> Iterator[tuple[str, Choice]]:
  """Yields the fields of a method and of its parts."""
  for name, parameter in methods.parameters(sync.method).items():
    limits = rule(parameter.annotation)
    if limits.names:
      own = sync[name]
      yield f'sync.{name}', (OWN, *(n for n in limits.names if n != own))
    elif name == 'lssr':
      yield 'sync.lssr', _LSSRS
    elif limits.kind in (int, float):
      yield from _wide(f'sync.{name}', sync[name], limits.limits)
  if 'outer' in sync and not sync.averager:
    rate = sync.outer.get('learning_rate')
    yield from _wide('sync.outer.learning_rate', rate)
  for kind, choices in _PARTS.items():
    if not sync[kind]:  # Else the config has chosen.
      yield from choices.items()


def _wide(
  field: str, value: Any, limits: Any = None
) -> Iterator[tuple[str, Choice]]:
  """Yields a range around a positive number, as far as the limits allow."""
  if not value or not isinstance(value, int | float) or not 0 < value < 1e9:
    return
  low, high = value / WIDTH, value * WIDTH
  most = getattr(limits, 'le', None)
  if isinstance(value, int):
    low, high = max(1, math.ceil(low)), math.floor(high)
  if most is not None:
    high = min(high, most)
  if low < high:
    yield field, Range(low, high)
