"""Converts modules of flax nnx to flax linen, which the package trains.

flax has `nnx.bridge.ToLinen`. But that needs a key for every random stream at
initialization, and names the layers of a list by integers, while names in files
are strings.
"""

from collections.abc import Callable, Iterator, Mapping
import functools
import inspect
from typing import Any

from flax import nnx, traverse_util
import flax.linen as nn


def as_linen(constructor: Callable[..., Any]) -> Callable[..., nn.Module]:
  """Returns a constructor of linen modules, given one of linen or nnx modules.

  A constructor of nnx modules has a parameter `rngs`; the result does not have
  it. The result raises `TypeError` if the constructor returns no module.
  """
  if isinstance(constructor, type) and issubclass(constructor, nn.Module):
    return constructor
  called = constructor
  if isinstance(constructor, type):  # The class itself takes (*args, **kwargs).
    called = functools.partial(constructor.__init__, None)
  signature = inspect.signature(called, eval_str=True)
  own = [p for p in signature.parameters.values() if p.name != 'rngs']
  is_nnx = len(own) < len(signature.parameters)

  @functools.wraps(constructor, updated=())
  def construct(*args, **fields):
    create = functools.partial(constructor, *args, **fields)
    module = FromNnx(create) if is_nnx else create()
    if not isinstance(module, nn.Module):
      raise TypeError(
        'must return a module of flax linen, or take rngs and return one of '
        f'flax nnx, got a {type(module).__name__}'
      )
    return module

  vars(construct)['__signature__'] = signature.replace(parameters=own)
  return construct


class FromNnx(nn.Module):
  """An nnx module with the interface of a linen one.

  Its variables are a nested dict, first by collection: `params` for
  `nnx.Param`, `batch_stats` for `nnx.BatchStat`, and the type's name for other
  types. Random streams are not variables: they restart at every call, from the
  key of that call.
  """

  create: Callable[..., nnx.Module]  # `create(rngs=...)`.

  @nn.compact
  def __call__(self, x: Any, *, train: bool) -> Any:
    is_initializing = self.is_initializing()
    stream = 'params' if is_initializing else 'dropout'
    key = self.make_rng(stream) if self.has_rng(stream) else 0
    # A compiled program skips initial weights, which are replaced below.
    module = self.create(rngs=nnx.Rngs(key))
    if not isinstance(module, nnx.Module):
      kind = type(module).__name__
      raise TypeError(f'must return a module of flax nnx, got a {kind}')
    if is_initializing:
      self._keep(module)
    else:
      _load(module, self.variables)
    module.train() if train else module.eval()
    outputs = module(x)
    if not is_initializing:
      self._keep(module)
    return outputs

  @nn.nowrap
  def to_nnx(self, variables: Mapping[str, Any]) -> nnx.Module:
    """Returns the nnx module itself, with these variables."""
    module = self.create(rngs=nnx.Rngs(0))
    _load(module, variables)
    return module

  def _keep(self, module):
    flat = {name: v.get_value() for name, _, v in _variables(module)}
    for collection, tree in traverse_util.unflatten_dict(flat).items():
      if self.is_mutable_collection(collection):
        for name, value in tree.items():
          self.put_variable(collection, name, value)


_COLLECTIONS = {nnx.Param: 'params', nnx.BatchStat: 'batch_stats'}


def _variables(
  module: nnx.Module,
) -> Iterator[tuple[tuple[str, ...], Any, nnx.Variable]]:
  """Yields name, path and variable, for all variables but random streams."""
  kept = nnx.All(nnx.Variable, nnx.Not(nnx.RngState))
  for path, variable in nnx.to_flat_state(nnx.state(module, kept)):
    kind = type(variable)
    own = (name for of, name in _COLLECTIONS.items() if issubclass(kind, of))
    yield (next(own, kind.__name__), *map(str, path)), path, variable


def _load(module: nnx.Module, variables: Mapping[str, Any]) -> None:
  """Replaces the variables of a module, except random streams."""
  flat = traverse_util.flatten_dict(dict(variables))
  state = [(p, v.replace(flat[name])) for name, p, v in _variables(module)]
  nnx.update(module, nnx.from_flat_state(state))
