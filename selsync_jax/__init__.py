"""Selective synchronization for data-parallel training in JAX.

The package's public names are listed in `__init__.pyi`. They are imported on
first use, so that a command can read its flags before it loads JAX. The names
for a custom training loop need no TensorFlow. `load` and `register_*` need the
extra `train`.
"""

import importlib.metadata
import logging
import re
from typing import Any

import lazy_loader

from selsync_jax.renamed import hint

__version__ = '0.1.0'  # pyproject.toml reads it here.
_TESTED = 0, 12  # The newest JAX that passes all tests, as in pyproject.toml.


def _warn_of_untested_jax() -> None:
  """Logs a line if the installed JAX is newer than the tested versions.

  This runs before the package imports parts of JAX that a release may change.
  """
  try:
    version = importlib.metadata.version('jax')
  except importlib.metadata.PackageNotFoundError:
    return  # JAX is missing, or was not installed by pip.
  if tuple(map(int, re.findall(r'\d+', version)[:2])) > _TESTED:
    major, minor = _TESTED
    logging.getLogger(__name__).warning(
      f'jax {version} is newer than {major}.{minor}, the newest that '
      'selsync_jax was tested with; if a run fails: '
      f"pip install 'jax<{major}.{minor + 1}'"
    )


_warn_of_untested_jax()

_offered, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
  try:
    return _offered(name)
  except AttributeError as error:
    raise AttributeError(f'{error}{hint(name, __all__)}') from error
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
      f"selsync_jax.{name}: {error}; pip install 'selsync-jax[train]'"
    ) from error
