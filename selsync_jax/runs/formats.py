"""A model's variables in one file or folder: safetensors, NumPy, orbax.

Variables are those of flax: a nested dict of arrays, `params` and other
collections. In a file, an array's name is its path, `params/Dense_0/kernel`; a
slash inside a part of the path is `%2F`, and a percent sign `%25`.
A JSON object describes the origin of the variables.
"""

from collections.abc import Callable, Mapping
import json
import pathlib
import tempfile
from typing import Any
import zlib

from flax import traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp
import safetensors
import safetensors.numpy

from selsync_jax.config import ConfigError
from selsync_jax.config import RunError
from selsync_jax.runs import files

Variables = Mapping[str, Any]
About = Mapping[str, Any]

ABOUT = 'selsync_jax'
"""The key of the JSON object in a file."""


def write_safetensors(
  path: pathlib.Path, variables: Variables, about: About
) -> None:
  """Writes a file whose header holds `about` as JSON."""
  arrays = flat(variables)
  about = {'crc32': _checksum(arrays), **about}
  content = safetensors.numpy.save(arrays, {ABOUT: json.dumps(about)})
  # `save_file` would let only the owner read, and hide that a disk is full.
  with files.replaced(path) as temporary:
    temporary.write_bytes(content)


def read_about(path: pathlib.Path) -> dict[str, Any]:
  """Returns the `about` of a file that `write_safetensors` wrote.

  Raises:
    DamagedFile: if `write_safetensors` did not write the content.
    RunError: if it cannot be read.
  """
  return _read(path, with_arrays=False)[1]


def read_safetensors(
  path: pathlib.Path,
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the variables, on the host, and the `about` of such a file.

  Raises:
    DamagedFile: if the content has changed since it was written.
    RunError: if it cannot be read.
  """
  arrays, about = _read(path, with_arrays=True)
  if _checksum(arrays) != about.get('crc32'):
    raise files.DamagedFile(path, 'it does not match its checksum')
  variables = {
    tuple(part.replace('%2F', '/').replace('%25', '%') for part in parts): array
    for parts, array in ((n.split('/'), x) for n, x in arrays.items())
  }
  return traverse_util.unflatten_dict(variables), about


def _read(path, with_arrays):
  try:
    with (
      path.open('rb'),  # `safe_open` reports every failure as a missing file.
      safetensors.safe_open(path, framework='np') as file,
    ):
      about = json.loads(file.metadata()[ABOUT])
      names = file.keys() if with_arrays else ()
      return {name: file.get_tensor(name) for name in names}, dict(about)
  except OSError as error:  # Not damage; another attempt may succeed.
    reason = error.strerror or error
    raise RunError(f'{path} cannot be read: {reason}') from error
  except Exception as error:  # safetensors raises several types.
    raise files.DamagedFile(path, ' '.join(str(error).split())) from error


def _checksum(arrays: Mapping[str, np.ndarray]) -> int:
  checksum = 0
  for name in sorted(arrays):
    checksum = zlib.crc32(name.encode(), checksum)
    checksum = zlib.crc32(arrays[name].tobytes(), checksum)
  return checksum


def _write_npz(path: pathlib.Path, variables: Variables, about: About) -> None:
  """Writes a file for `np.load`, with bfloat16 as float32."""
  arrays: dict[str, Any] = {
    name: array.astype(np.float32) if array.dtype.kind == 'V' else array
    for name, array in flat(variables).items()
  }
  arrays[ABOUT] = np.array(json.dumps(about))
  with files.replaced(path) as temporary, temporary.open('wb') as file:
    np.savez(file, allow_pickle=False, **arrays)


def _write_orbax(
  path: pathlib.Path, variables: Variables, about: About
) -> None:
  """Writes a folder for `StandardCheckpointer.restore`."""
  with tempfile.TemporaryDirectory(
    dir=path.parent, prefix=f'.{path.name}.', ignore_cleanup_errors=True
  ) as folder:
    written = pathlib.Path(folder).absolute() / 'weights'
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(
        written,
        jax.tree.map(np.asarray, dict(variables)),
        custom_metadata={ABOUT: dict(about)},
      )
    written.rename(path)


_WRITERS: dict[str, Callable[[pathlib.Path, Variables, About], None]] = {
  '.safetensors': write_safetensors,
  '.npz': _write_npz,
  '': _write_orbax,
}


def check(path: pathlib.Path) -> None:
  """Raises `ConfigError` if `write` could not write there."""
  if path.suffix not in _WRITERS:
    raise ConfigError(
      f'--out={path}: must end in .safetensors or .npz, or be a folder without '
      'a suffix, for orbax'
    )
  if path.exists():
    raise ConfigError(f'--out={path}: exists already; choose another name')
  if not path.parent.is_dir():
    raise ConfigError(f'--out={path}: there is no folder {path.parent}')


def write(path: pathlib.Path, variables: Variables, about: About) -> None:
  """Writes variables in the format that the suffix of a checked path names.

  Raises:
    RunError: if the disk is full, or the folder cannot be written.
  """
  try:
    _WRITERS[path.suffix](path, variables, about)
  except (OSError, ValueError) as error:  # tensorstore raises ValueError.
    raise RunError(f'{path}: {files.reason(error)}') from error


def check_arrays(variables: Variables) -> None:
  """Raises `RunError` if a file cannot hold these names and dtypes."""
  try:
    safetensors.numpy.save(
      {name: array.ravel()[:0] for name, array in flat(variables).items()}
    )
  except Exception as error:
    raise RunError(f'weights: {files.reason(error)}') from error


def flat(variables: Variables) -> dict[str, np.ndarray]:
  """Returns the arrays on the host, by their names in a file."""
  return {
    '/'.join(part.replace('%', '%25').replace('/', '%2F') for part in path): (
      np.asarray(leaf, order='C')
    )
    for path, leaf in traverse_util.flatten_dict(dict(variables)).items()
  }
