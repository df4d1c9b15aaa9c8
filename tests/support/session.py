"""Folders and checks shared by all xdist workers of a test session."""

from collections.abc import Callable
import fcntl
import functools
from importlib.machinery import SourceFileLoader
import os
import pathlib
import shutil
import types
from typing import Any
from unittest import mock

import beartype
import jaxtyping
from jaxtyping import _import_hook

ROOT = pathlib.Path(__file__).parents[2]
SESSION = pathlib.Path(os.environ['SELSYNC_TESTS'])  # From conftest.py.

# An int may be passed for a float, like in any type checker.
typecheck = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def check_public_signatures() -> None:
  """Checks the shapes and types of public signatures at every call.

  The hook would also wrap private functions, and nested functions each time
  their definition is executed, which took half of the tests' time.
  """
  jaxtyping.jaxtyped = _jaxtyped_if_public
  loader = _import_hook._JaxtypingLoader
  loader.get_code = _get_code
  loader.exec_module = SourceFileLoader.exec_module
  jaxtyping.install_import_hook(
    'selsync_jax', 'tests.support.session.typecheck'
  )


def _get_code(loader: Any, module: str) -> types.CodeType:
  """The code of a module with its checks, from a separate cache.

  Jaxtyping would use that cache for all imports of the module, too. They are
  not in it, so each process would compile TensorFlow and others, for seconds.
  """
  tag = loader._typechecker.get_hash()
  with mock.patch(
    'importlib._bootstrap_external.cache_from_source',
    functools.partial(_import_hook._optimized_cache_from_source, tag),
  ):
    return SourceFileLoader.get_code(loader, module)


def _jaxtyped_if_public(*, typechecker: Any) -> Callable[[Any], Any]:
  def decorate(definition: Any) -> Any:
    name = getattr(definition, '__qualname__', 'property')
    if '<locals>' in name or '._' in f'.{name}':
      return definition
    is_function = isinstance(definition, types.FunctionType)
    if is_function and not _has_shapes(definition):
      return typechecker(definition)
    return _jaxtyped(definition, typechecker=typechecker)

  return decorate


def _has_shapes(function: types.FunctionType) -> bool:
  """Whether an annotation describes arrays, or is a string that could do so.

  Other annotations have no shapes to compare, and binding their arguments took
  a quarter of the tests' time.
  """
  return any(
    isinstance(annotation, str) or 'jaxtyping' in repr(annotation)
    for annotation in function.__annotations__.values()
  )


def make_once(name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
  """A folder of the session, made by the first xdist worker that asks for it.

  Args:
    name: name of the folder.
    make: fills the folder; the other workers wait meanwhile.

  Returns:
    The folder. A test that changes its files takes a copy.
  """
  folder = SESSION / name
  with folder.with_suffix('.lock').open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = folder.with_suffix('.done')
    if not done.exists():
      shutil.rmtree(folder, ignore_errors=True)  # From a failed attempt.
      folder.mkdir(parents=True)
      make(folder)
      done.touch()
  return folder
