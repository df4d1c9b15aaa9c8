"""The choices of a search: for each method, rows of a field and its choice.

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
from selsync_jax.config import ConfigError, rule
from selsync_jax.training.settings import Settings
from selsync_jax.tune.choices import ALL, Choice, Choices, OWN, Range

WIDTH = 4.0
"""A range is from the config's value divided by this, to the value times this.
"""

RATE = 'optimizer.learning_rate'

_HALF = '+sync.delay.keep=0.5+sync.delay.extrapolate=0.5'
_PARTS: Choices = {  # Parts of a method, where the config has not chosen.
  'sync.wire': (OWN, 'bfloat16', 'int8', 'int4'),
  'sync.delay': (
    OWN,
    *(f'{k}{mix}' for k in (1, 2, 4, 8) for mix in ('', _HALF)),
  ),
  'sync.optimizer_state': (OWN, 'mean', 'reset'),
}
OF_AVERAGES = frozenset([*_PARTS, 'sync.trigger'])
"""Fields of averages of parameters."""
_COARSE = 'int4', 'int8'
_LSSRS = (OWN, 0.5, 0.75, 0.9, 0.95, 0.98)


Load = Callable[[str, Mapping[str, Any]], Settings]
"""`load(method, fields)`: the checked settings of a method, with some fields
changed; a `ConfigError` if they contradict each other."""


class Space(NamedTuple):
  """The choices for each method.

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
    leave the range. Fields that stay as the config has them are left out.
    """
    method = trial.suggest_categorical('method', list(self.choices))
    fields = {}
    for field, choice in self.choices[method].items():
      value = _suggest(trial, self.name(method, field), choice)
      if value not in (OWN, self.own[method][field]):
        fields[field] = _rounded(value, choice)
    return method, fields

  def name(self, method: str, field: str) -> str:
    """Returns the name of a choice for Optuna.

    The name is the field if the method has the same values for it as the first
    method with this field.
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
    coarse averages are worth more than few fine ones (docs/evidence.md). The
    learning rate is the config's, and twice that rate. All other choices are
    the config's. A method that always exceeds the budget yields nothing.

    Args:
      method: a method whose `sync.period` or `sync.lssr` may be chosen.
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


def _holds(choice: Choice, value: Any) -> bool:
  """Returns whether a choice contains a value."""
  if isinstance(choice, Range):
    is_number = isinstance(value, int | float)
    return is_number and choice.low <= value <= choice.high
  return value in choice


def _ascending(choice: Choice, own: Any) -> Sequence[Any]:
  """Returns the numbers of a choice; real ones have two decimals."""
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
    given: the choices of a file, by method or `ALL`; they replace ranges around
      the config's values.

  Raises:
    ConfigError: if a method refuses a value of its own choices. A value for
      all methods is left out of the methods that refuse it.
  """
  choices: dict[str, Choices] = {}
  values: dict[str, dict[str, Any]] = {}
  for spec in specs:
    settings, own = load(spec, {}), given.get(spec, {})
    for field, choice in own.items():
      for value in _ends(choice):
        load(spec, {field: value})
    every = dict(_around(settings)) | given.get(ALL, {})
    set_here = {each.partition('=')[0] for each in spec.split('+')[1:]}
    free = {
      field: own.get(field) or _accepted(load, spec, field, choice)
      for field, choice in (every | own).items()
      if field not in fixed and not {field, f'{field}.name'} & set_here
    }
    choices[spec] = {k: choice for k, choice in free.items() if choice}
    values[spec] = {f: _own(settings.config, f) for f in choices[spec]}
  return Space(choices, values)


def check_used(
  spaces: Iterable[Space], load: Load, fixed: Container[str], choices: Choices
) -> None:
  """Raises `ConfigError` for a choice of `ALL` that every method refuses.

  Args:
    spaces: spaces that were built with these choices.
    load: see `Load`.
    fixed: see `build`.
    choices: the choices of `ALL`.
  """
  every = {spec: own for space in spaces for spec, own in space.choices.items()}
  *_, last = every
  for field, choice in choices.items():
    if field not in fixed and not any(field in own for own in every.values()):
      for value in _ends(choice):
        load(last, {field: value})  # Its error names the problem.


def _ends(choice: Choice) -> Sequence[Any]:
  """Returns the values of a choice that show whether a config accepts it."""
  if isinstance(choice, Range):
    return choice.low, choice.high
  return [value for value in choice if value != OWN]


def _accepted(
  load: Load, spec: str, field: str, choice: Choice
) -> Choice | None:
  """Returns the part of a choice that a method accepts, if there is one.

  If it refuses an end of a range of whole numbers, the part has the low end and
  its doublings.
  """

  def accepts(value):
    try:
      load(spec, {field: value})
    except ConfigError:
      return False
    return True

  if isinstance(choice, Range):
    if all(map(accepts, _ends(choice))):
      return choice
    low, high = int(choice.low), int(choice.high)
    doublings = (high // max(low, 1)).bit_length() if choice.is_whole else 0
    choice = tuple(low << k for k in range(doublings))
  kept = tuple(value for value in choice if value == OWN or accepts(value))
  return kept if kept not in ((), (OWN,)) else None


def _around(settings: Settings) -> Iterator[tuple[str, Choice]]:
  """Yields the rows that a search varies unless a file says otherwise."""
  config, sync = settings.config, settings.config.sync
  yield from _wide(RATE, config.optimizer.learning_rate)
  length = 'epochs' if config.steps is None else 'steps'
  longest = config[length]
  shortest = type(longest)(longest / WIDTH)
  if 0 < shortest < longest:
    yield length, Range(shortest, longest)
  if warmup := config.schedule.warmup_epochs:
    yield 'schedule.warmup_epochs', Range(0.0, 2.0 * warmup, log=False)
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
  for field, choice in _PARTS.items():
    if not _own(config, field):  # Else the config has chosen.
      yield field, choice


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
