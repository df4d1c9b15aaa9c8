"""Methods that only combine parts, as rows of a table."""

from collections.abc import Mapping, Sequence
import functools
import inspect
from typing import Any

from selsync_jax.config import Constructor, made
from selsync_jax.methods.parts import bind_value, Context, KINDS
from selsync_jax.sync.averagers import outer
from selsync_jax.sync.fragments import fragments
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.triggers import every

_NAMES: dict[Constructor, dict[str, str]] = {
  every: {'k': 'period'},
  fragments: {'k': 'fragments'},
  outer: {'optimizer': 'outer'},
}
"""The fields with another name than their parameter, by constructor."""

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_CONTEXT = inspect.Parameter('context', inspect.Parameter.POSITIONAL_ONLY)

Chain = Constructor | Sequence[Constructor]
"""The constructor of a part, or a sequence in which each contains the next."""


class Method:
  """A constructor of a `Strategy` that passes its fields to its parts.

  A parameter of a part is a field if it is in `defaults`, and a value of the
  run if `Context` has its name. Otherwise it keeps its own default.

  Args:
    does: a sentence that describes the method.
    parts: the parts by name, see `Chain`.
    defaults: the fields in `config.sync`, and their defaults.
    cites: the paper.
    notes: sentences on deviations from the paper.
    optimizer: the local optimizer in our workloads, if the method requires one.
    model_state: `recompute` if averages would spoil batch statistics.

  Attributes:
    cites: the paper.
    sources: the constructor and the parameter of each field.
  """

  def __init__(
    self,
    does: str,
    parts: Mapping[str, Chain],
    defaults: Mapping[str, Any],
    cites: str,
    notes: str = '',
    *,
    optimizer: Mapping[str, Any] | None = None,
    model_state: str = 'mean',
  ):
    self.__doc__ = f'{does}\n\nReferences:\n  {cites} {notes}'.rstrip()
    self._parts = {
      kind: (chain,) if callable(chain) else chain
      for kind, chain in parts.items()
    }
    self.cites = cites
    self.optimizer, self.model_state = optimizer, model_state
    of_parts = {
      field: (getattr(constructor, 'func', constructor), parameter)
      for chain in self._parts.values()
      for constructor in chain
      for field, parameter in _parameters(constructor).items()
    }
    if unknown := [field for field in defaults if field not in of_parts]:
      raise ValueError(
        f'the parts have no {unknown[0]}; they have {", ".join(of_parts)}'
      )
    self.sources = {field: of_parts[field] for field in defaults}
    fields = [
      of_parts[field][1].replace(name=field, kind=_KEYWORD, default=default)
      for field, default in defaults.items()
    ]
    self.__signature__ = inspect.Signature([_CONTEXT, *fields])

  def __call__(self, context: Context, **given: Any) -> Strategy:
    """Returns the strategy of a run."""
    call = self.__signature__.bind(context, **given)
    call.apply_defaults()
    values = context._asdict()
    for field, value in call.kwargs.items():
      annotation = self.__signature__.parameters[field].annotation
      bound = bind_value(annotation, value, f'sync.{field}')
      values[field] = made(bound, {})
    return Strategy(**{k: _make(c, values) for k, c in self._parts.items()})


@functools.cache
def _parameters(constructor: Constructor) -> dict[str, inspect.Parameter]:
  """Returns the parameters of a part by the names of their fields."""
  names = _NAMES.get(getattr(constructor, 'func', constructor), {})
  every = inspect.signature(constructor, eval_str=True).parameters
  return {names.get(name, name): p for name, p in every.items()}


def _make(chain: Sequence[Constructor], values: Mapping[str, Any]) -> Any:
  constructor, *inside = chain
  own = _parameters(constructor)
  arguments = {own[k].name: v for k, v in values.items() if k in own}
  if inside:
    holds = next(p.name for p in own.values() if p.annotation in KINDS)
    arguments[holds] = _make(inside, values)
  return constructor(**arguments)
