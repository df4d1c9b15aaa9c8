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

import ml_collections
import numpy as np

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
  'sync.wire': (OWN, 'bfloat16', 'int8', 'int4', 'int2'),
  'sync.delay': (
    OWN,
    *(f'{k}{mix}' for k in (1, 2, 4, 8) for mix in ('', _HALF)),
  ),
  'sync.optimizer_state': (OWN, 'mean', 'reset'),
}
OF_AVERAGES = frozenset([*_PARTS, 'sync.trigger'])
"""Fields of averages of parameters."""
_COARSE = 'int8', 'int4', 'int2'
_SIZES = 'sync.fragments', 'sync.period', 'sync.lssr'
_LSSRS = (OWN, 0.5, 0.75, 0.9, 0.95, 0.98)


Recipe = tuple[str, Mapping[str, Any]]
"""A method, and the fields in which it differs from its config."""

Load = Callable[[str, Mapping[str, Any]], Settings]
"""`load(method, fields)`: the checked settings of a method, with some fields
changed; a `ConfigError` if they contradict each other."""


class Space(NamedTuple):
  """The choices for each method.

  A method is `NAME`, or `NAME+FIELD=VALUE+...` as in a comparison.
  """

  choices: Mapping[str, Choices]  # By method.
  own: Mapping[str, Mapping[str, Any]]  # The config's values of these fields.

  def draw(self, seed: int, number: int) -> Recipe:
    """Draws a method and its fields, which the seed and the number decide.

    Fields that stay as the config has them are left out.
    """
    rng = np.random.default_rng([seed, number])
    method = _draw(rng, tuple(self.choices))
    drawn = {k: _draw(rng, each) for k, each in self.choices[method].items()}
    return method, self._changed(method, drawn)

  def _changed(self, method: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields that differ from the config's, in the order of choices."""
    own, known = self.own[method], self.choices[method]
    return {
      k: fields[k]
      for k in known
      if k in fields and fields[k] not in (OWN, own[k])
    }

  def densest(
    self, method: str, fits: Callable[[Mapping[str, Any]], bool]
  ) -> Iterator[dict[str, Any]]:
    """Yields fields that spend a whole budget on averages.

    The averages are in the two coarsest wires of `_COARSE` that may be chosen:
    many coarse averages are worth more than few fine ones (docs/evidence.md).
    The learning rate is the config's, and twice that rate. All other fields are
    the config's. A method that always exceeds the budget yields nothing.
    `fits` tells whether the method with some fields is within the budget.
    """
    choices = self.choices[method]
    field = next((field for field in _SIZES if field in choices), '')
    values = _ascending(choices.get(field, ()), self.own[method].get(field))
    wires = [w for w in _COARSE if _holds(choices.get('sync.wire', ()), w)]
    for changed in [{'sync.wire': wire} for wire in wires[-2:]] or [{}]:
      least = bisect.bisect_left(
        values, True, key=lambda value: fits({**changed, field: value})
      )
      if least < len(values):
        dense = {**changed, field: values[least]}
        yield self._changed(method, dense)
        rate = 2 * self.own[method].get(RATE, math.inf)
        if _holds(choices.get(RATE, ()), rate):
          yield self._changed(method, dense | {RATE: rate})


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


def _draw(rng: np.random.Generator, choice: Choice) -> Any:
  """Draws a value of a choice.

  Real numbers of a range have two significant digits, more where that would
  leave the range.
  """
  if not isinstance(choice, Range):
    return choice[rng.integers(len(choice))]
  low, high = choice.low, choice.high + choice.is_whole
  if choice.log:
    value = math.exp(rng.uniform(math.log(low), math.log(high)))
  else:
    value = rng.uniform(low, high)
  if choice.is_whole:
    return min(max(math.floor(value), choice.low), choice.high)
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

  No trial changes the `fixed` fields, which the command line sets. The choices
  of a file, `given` by method or `ALL`, replace ranges around the config's
  values. A value for all methods is left out of the methods that refuse it.

  Raises:
    ConfigError: if a method refuses a value of its own choices.
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
  """Raises `ConfigError` for a choice of `ALL` that every space refuses."""
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
