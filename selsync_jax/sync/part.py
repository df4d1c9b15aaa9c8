"""Parts that remember the call that made them, so that an argument can change.

A strategy is composed of parts, and a part may contain others: a trigger made
of triggers, an averager with a wire.
"""

from collections.abc import Callable, Iterator, Mapping
import functools
import inspect
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax

from selsync_jax import renamed
from selsync_jax.config import check_arguments
from selsync_jax.sync.worker_mesh import AXIS


class Recipe(NamedTuple):
  """The call that made a part."""

  constructor: Callable[..., Any]  # A function decorated with `part`.
  arguments: inspect.BoundArguments

  def __str__(self) -> str:
    """Returns the call, without default arguments."""
    texts = []
    parameters = self.arguments.signature.parameters
    for name, value in self.arguments.arguments.items():
      parameter = parameters[name]
      if parameter.kind is parameter.VAR_POSITIONAL:
        texts += map(_shown, value)
      elif value is not parameter.default:
        alone = parameter is next(iter(parameters.values()))
        alone &= parameter.kind is not parameter.KEYWORD_ONLY
        texts.append(_shown(value) if alone else f'{name}={_shown(value)}')
    return f'{self.constructor.__name__}({", ".join(texts)})'


class Part:
  """Base class of the results of constructors decorated with `part`."""

  recipe: Recipe | None = None

  def __repr__(self) -> str:
    """Returns the constructor's call that made the part, if there was one."""
    return str(self.recipe or f'{type(self).__name__}(...)')

  @property
  def axes(self) -> set[str]:
    """The names of the workers' axis in this part and the parts inside."""
    recipes = [each.recipe for each in (self, *inside(self))]
    given = [recipe.arguments.arguments for recipe in recipes if recipe]
    return {AXIS, *(call['axis_name'] for call in given if 'axis_name' in call)}


Metrics = Callable[[Any], Mapping[str, Any]]
"""`metrics(state)`: the scalars that a part reports at every step, by name."""


P = ParamSpec('P')
T = TypeVar('T', bound=Part)


def part(constructor: Callable[P, T]) -> Callable[P, T]:
  """Decorates a constructor, so that its result has a `recipe`.

  The constructor then raises `ValueError` for an argument outside the range
  that its annotation declares.
  """
  signature = inspect.signature(constructor)

  @functools.wraps(constructor)
  def construct(*args: P.args, **kwargs: P.kwargs) -> T:
    try:
      call = signature.bind(*args, **kwargs)
    except TypeError as error:
      hints = (renamed.hint(name, signature.parameters) for name in kwargs)
      raise TypeError(
        f'{constructor.__name__}: {error}{"".join(hints)}'
      ) from None
    if isinstance(axes := call.arguments.get('axis_name'), tuple):
      raise ValueError(
        f'axis_name={axes}: must be one axis, with an index for each worker; '
        'leave the axes inside a worker to XLA: '
        "jax.shard_map(..., axis_names={'workers'})"
      )
    _check(constructor, call.arguments)
    made = constructor(*args, **kwargs)
    # Some parts are frozen dataclasses.
    object.__setattr__(made, 'recipe', Recipe(construct, call))
    return made

  return construct


def _check(
  constructor: Callable[..., Any], arguments: Mapping[str, Any]
) -> None:
  """Raises `ValueError` for the first argument that breaks its annotation.

  The message names all arguments that `optax.inject_hyperparams` made arrays.
  """
  try:
    check_arguments(constructor, arguments)
  except ValueError as error:
    if injected := [*_refused_arrays(constructor, arguments)]:
      raise ValueError(
        f'{constructor.__name__}: {", ".join(injected)} must not be an array; '
        'in optax.inject_hyperparams, add to static_args: '
        f'{", ".join(map(repr, injected))}'
      ) from error
    raise


def _refused_arrays(constructor, arguments):
  for name, value in arguments.items():
    try:
      check_arguments(constructor, {name: value})
    except ValueError:
      if isinstance(value, jax.Array):
        yield name


def _shown(value: Any) -> str:
  """Returns a part as the call that makes it, any other value as its `repr`."""
  is_plain = isinstance(value, Part | Mapping)
  if not is_plain and callable(getattr(value, 'update', value)):
    return '...'  # An optimizer, for example.
  return repr(value)


def rebuild(old: T, **changes: Any) -> T:
  """Makes a part again with some arguments changed, or raises `ValueError`."""
  recipe = old.recipe
  if recipe is None:
    raise ValueError(f'{old!r} was not made by a function with @part')
  for name in changes:
    if name not in recipe.arguments.signature.parameters:
      raise ValueError(f'{recipe} has no {name}')
  call = recipe.arguments
  given = call.signature.bind_partial(*call.args, **call.kwargs)
  given.arguments.update(changes)
  return recipe.constructor(*given.args, **given.kwargs)


def inside(old: Part) -> Iterator[Part]:
  """Yields the parts inside a part, at any depth."""
  if old.recipe is None:
    return
  call = old.recipe.arguments
  for value in (*call.args, *call.kwargs.values()):
    if isinstance(value, Part):
      yield value
      yield from inside(value)


def hand(old: T, **given: Any) -> T | None:
  """Replaces one argument of a part, or of the parts inside it.

  Returns `None` if none of these parts takes the argument.
  """
  (name,) = given
  if old.recipe is None:
    return None
  call = old.recipe.arguments
  if name in call.signature.parameters:
    return rebuild(old, **given)
  arguments = {k: p.default for k, p in call.signature.parameters.items()}
  arguments |= call.arguments
  inside = {
    key: new
    for key, value in arguments.items()
    if isinstance(value, Part) and (new := hand(value, **given))
  }
  return rebuild(old, **inside) if inside else None
