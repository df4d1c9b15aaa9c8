"""What all tests of a session share, whichever xdist worker runs them."""

from collections.abc import Callable
import fcntl
import os
import pathlib
import shutil
import types
from typing import Any

import beartype
import jaxtyping

ROOT = pathlib.Path(__file__).parents[2]
SESSION = pathlib.Path(os.environ['SELSYNC_TESTS'])  # From conftest.py.

# An int may stand for a float, as for any type checker.
typecheck = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
_jaxtyped = jaxtyping.jaxtyped


def check_public_signatures() -> None:
  """Lets the shapes and types of public signatures hold for every call.

  The hook would also wrap private functions, and nested ones each time that
  their definition is executed, which took half of the tests' time.
  """
  jaxtyping.jaxtyped = _jaxtyped_if_public
  jaxtyping.install_import_hook(
    'selsync_jax', 'tests.support.session.typecheck'
  )


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
  """Whether an annotation is of arrays, or a string that could be.

  Without one there are no shapes to compare, and binding the arguments for it
  took a quarter of the tests' time.
  """
  return any(
    isinstance(annotation, str) or 'jaxtyping' in repr(annotation)
    for annotation in function.__annotations__.values()
  )


def make_once(name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
  """A folder of the session that the first xdist worker to ask for it makes.

  Args:
    name: of the folder.
    make: fills the folder; the other workers wait meanwhile.

  Returns:
    The folder. Whoever changes anything in it takes a copy.
  """
  folder = SESSION / name
  with folder.with_suffix('.lock').open('w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = folder.with_suffix('.done')
    if not done.exists():
      shutil.rmtree(folder, ignore_errors=True)  # Of an attempt that failed.
      folder.mkdir(parents=True)
      make(folder)
      done.touch()
  return folder
