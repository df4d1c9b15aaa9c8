"""Files with named arrays: safetensors, NumPy, and folders of orbax.

Variables are as in flax: a nested dict of arrays, `params` and other
collections. In a file, arrays have the names of `array_names`, and a JSON
object, `about`, describes the origin of the variables.
"""

from collections.abc import Callable, Generator, Mapping
import contextlib
import json
import pathlib
import tempfile
from typing import Any, NotRequired, TypedDict
import zlib

from flax import traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp
import safetensors
import safetensors.numpy

from selsync_jax import user_errors
from selsync_jax.array_names import array_name, by_name
from selsync_jax.config import RunError
from selsync_jax.runs import files

Variables = Mapping[str, Any]
About = Mapping[str, Any]

_ABOUT = 'selsync_jax'  # The key of the JSON object in a file.


class _About(TypedDict):
  crc32: NotRequired[int]
  scores: NotRequired[dict[str, float]]


def checksum(arrays: Mapping[str, np.ndarray]) -> int:
  """Returns the CRC-32 of arrays and their names."""
  total = 0
  for name in sorted(arrays):
    total = zlib.crc32(name.encode(), total)
    total = zlib.crc32(arrays[name].tobytes(), total)
  return total


def flat(tree: Any) -> dict[str, np.ndarray]:
  """Returns the arrays on the host, by their names in a file."""
  named = by_name(tree).items()
  return {name: np.asarray(leaf, order='C') for name, leaf in named}


def replaced(variables: Variables, arrays: Mapping[str, Any]) -> Any:
  """Returns variables with some arrays replaced, by name."""
  return jax.tree.map_with_path(
    lambda path, leaf: arrays.get(array_name(path), leaf), dict(variables)
  )


def write_safetensors(
  path: pathlib.Path, variables: Variables, about: About
) -> None:
  """Writes a file whose header holds `about` as JSON."""
  arrays = flat(variables)
  about = {'crc32': checksum(arrays), **about}
  content = safetensors.numpy.save(arrays, {_ABOUT: json.dumps(about)})
  # `save_file` would let only the owner read, and hide that a disk is full.
  with files.replaced(path) as temporary:
    temporary.write_bytes(content)


def _write_npz(path: pathlib.Path, variables: Variables, about: About) -> None:
  """Writes a file for `np.load`, with bfloat16 as float32."""
  arrays: dict[str, Any] = {
    name: array.astype(np.float32) if array.dtype.kind == 'V' else array
    for name, array in flat(variables).items()
  }
  arrays[_ABOUT] = np.array(json.dumps(about))
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
        custom_metadata={_ABOUT: dict(about)},
      )
    written.rename(path)


WRITERS: dict[str, Callable[[pathlib.Path, Variables, About], None]] = {
  '.safetensors': write_safetensors,
  '.npz': _write_npz,
  '': _write_orbax,
}


def write(path: pathlib.Path, variables: Variables, about: About) -> None:
  """Writes variables in the format that the suffix of the path names."""
  try:
    WRITERS[path.suffix](path, variables, about)
  except (OSError, ValueError) as error:  # tensorstore raises ValueError.
    raise RunError(f'{path}: {user_errors.reason(error)}') from error


@contextlib.contextmanager
def _reading(path: pathlib.Path) -> Generator[None]:
  """Raises an error of the reading library again, in one line."""
  try:
    yield
  except OSError as error:  # Not damage; another attempt may succeed.
    raise RunError(
      f'{path} cannot be read: {user_errors.reason(error)}'
    ) from error
  except Exception as error:  # A damaged file raises errors of any type.
    raise files.DamagedFile(path, user_errors.reason(error)) from error


def orbax_trees(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns the trees in a folder of orbax: itself or, since v1, inside it."""
  if (path / '_METADATA').exists():
    return [path]
  return sorted(found.parent for found in path.glob('*/_METADATA'))


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the arrays of a file, or of a folder with one tree, by their names.

  The arrays are on the host. A file of ours must be intact.
  """
  trees = orbax_trees(path)
  if path.suffix == '.safetensors' and len(trees) != 1:
    return _read_safetensors(path)[0]
  with _reading(path):
    if len(trees) == 1:
      return flat(read_orbax(trees[0]))
    with np.load(path, allow_pickle=False) as file:
      return {name: file[name] for name in file if name != _ABOUT}


def read_orbax(
  folder: pathlib.Path, part: Callable[[Any], Any] = lambda tree: tree
) -> Any:
  """Returns a tree of orbax on the host, whatever devices wrote it.

  `part` selects the part to read from the tree that the folder lists.
  """
  on_host = ocp.RestoreArgs(restore_type=np.ndarray)
  with ocp.PyTreeCheckpointer() as checkpointer:
    tree = checkpointer.metadata(folder.absolute()).item_metadata.tree
    wanted = part(tree)
    return checkpointer.restore(
      folder.absolute(),
      args=ocp.args.PyTreeRestore(
        wanted,
        restore_args=jax.tree.map(lambda _: on_host, wanted),
        partial_restore=True,
      ),
    )


def read_variables(
  path: pathlib.Path,
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns the variables and the `about` of an intact file of ours."""
  arrays, about = _read_safetensors(path)
  if 'crc32' not in about:
    raise files.DamagedFile(path, 'it has no checksum')
  variables = {
    tuple(part.replace('%2F', '/').replace('%25', '%') for part in parts): array
    for parts, array in ((n.split('/'), x) for n, x in arrays.items())
  }
  return traverse_util.unflatten_dict(variables), about


def read_about(path: pathlib.Path) -> dict[str, Any]:
  """Returns the `about` of a file of ours; arrays stay unread and unchecked."""
  return _read_safetensors(path, with_arrays=False)[1]


def _read_safetensors(path: pathlib.Path, with_arrays: bool = True):
  """Reads the arrays by name, and `about`, empty if the file is not ours."""
  with (
    _reading(path),
    path.open('rb'),  # `safe_open` reports every failure as a missing file.
    safetensors.safe_open(path, framework='np') as file,
  ):
    text = (file.metadata() or {}).get(_ABOUT, '{}')
    about = files.parse(text.encode(), _About)
    names = file.keys() if with_arrays else ()
    arrays = {name: file.get_tensor(name) for name in names}
  expected = about.get('crc32') if with_arrays else None
  if expected is not None and checksum(arrays) != expected:
    raise files.DamagedFile(path, 'it does not match its checksum')
  return arrays, about
