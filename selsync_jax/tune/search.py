"""The trials of a search, all drawn from its seed before the first one runs."""

from collections.abc import Callable, Iterable, Mapping
import itertools
import pathlib
from typing import Any, NamedTuple

from selsync_jax.config import ConfigError
from selsync_jax.runs.history import Trial
from selsync_jax.tune.objective import NOWHERE, Point
from selsync_jax.tune.space import Load, Recipe, Space

_DRAWS = 30  # A list ends after this many draws in a row that add no trial.


class Result(NamedTuple):
  """A trial, or its settings with another seed."""

  method: str
  fields: Mapping[str, Any]
  run: Trial
  value: float | None = None  # `None` if the run has no value, or not yet.
  point: Point = NOWHERE  # The decisive one.

  @property
  def label(self) -> str:
    """The method with its settings."""
    return f'{self.run.label}, lr {self.run.learning_rate:g}'


def listed(
  space: Space,
  fixed: Iterable[Recipe],
  seed: int,
  count: int,
  load: Load,
  make: Callable[[str, Mapping[str, Any]], Trial],
) -> list[Result]:
  """Returns `count` trials without a value: first fixed ones, then draws.

  Settings that `load` refuses, or that are listed already, are left out. The
  list ends early if 30 draws in a row are left out. `make` returns the run of a
  method with some fields.
  """
  found: dict[pathlib.Path, Result] = {}
  draws = (space.draw(seed, number) for number in itertools.count())
  left_out = 0
  for method, fields in itertools.chain(fixed, draws):
    if len(found) == count or left_out == _DRAWS:
      break
    left_out += 1
    try:
      load(method, fields)
    except ConfigError:
      continue
    run = make(method, fields)
    if run.workdir not in found:
      found[run.workdir] = Result(method, fields, run)
      left_out = 0
  return [*found.values()]
