"""Reads the weights that a run starts from, out of a run or a file.

The source may be a run, whatever its mesh and number of workers, a file of
safetensors or NumPy, or an orbax checkpoint of another program. Arrays are
matched by name, see `array_names`.
"""

import pathlib
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from selsync_jax.array_names import by_name
from selsync_jax.config import ConfigError
from selsync_jax.runs import array_files, checkpoints, records, weights
from selsync_jax.runs.source import some, Source


class Given(NamedTuple):
  """Arrays that replace the seed's initial arrays, by name."""

  arrays: dict[str, np.ndarray]  # On the host, in the model's dtypes.
  line: str  # Where they come from, and which did not match.

  @property
  def fingerprint(self) -> dict[str, Any]:
    """A fingerprint of the weights, for JSON."""
    return {'init_from': {'crc32': array_files.checksum(self.arrays)}}


def check(source: Source) -> None:
  """Raises `ConfigError` for a path that weights cannot be read from."""
  path = source.path
  if _is_run(path):
    return
  if (path / checkpoints.RECORD).exists():
    raise ConfigError(
      f'{source}: is a checkpoint; give the folder of the run, or the output '
      f'of `export --step={path.name}`'
    )
  trees = array_files.orbax_trees(path)
  is_file = path.suffix in ('.safetensors', '.npz') and path.exists()
  if len(trees) != 1 and not is_file:
    several = f', not {some(tree.name for tree in trees)}' if trees else ''
    raise ConfigError(
      f'{source}: must be the folder of a run, a file .safetensors or .npz, or '
      f'a folder of orbax with one tree{several}'
    )


def _is_run(path: pathlib.Path) -> bool:
  return (path / records.METRICS).exists()  # Others have a config.json, too.


def read(source: Source, variables: Any) -> Given:
  """Returns the arrays for a model whose variables have these shapes.

  Raises:
    ConfigError: if no array of the source fits, one has another shape, or the
      table does not fit.
    RunError: if the source is damaged.
  """
  check(source)
  if _is_run(source.path):
    last = weights.read(source.path)
    found, step = array_files.flat(last.variables), f', step {last.step}'
  else:
    found, step = array_files.read(source.path), ''
  names, wanted = source.translated(found), by_name(variables)
  arrays = {
    name: _fitted(source, name, found[names[name]], like)
    for name, like in wanted.items()
    if name in names
  }
  if not arrays:
    raise ConfigError(
      f'{source}: none of its arrays is in the model, which has '
      f'{some(wanted)}; it has {some(found)}; config.init_rename translates'
    )
  line = f'weights of {source.path}{step}: '
  line += f'{len(arrays)} of {len(wanted)} arrays'
  if missing := [name for name in wanted if name not in names]:
    line += f'; not there, so initialized: {some(missing)}'
  if unused := [names[name] for name in names if name not in wanted]:
    line += f'; not used: {some(unused)}'
  return Given(arrays, line)


def _fitted(
  source: Source, name: str, array: np.ndarray, like: Any
) -> np.ndarray:
  """Returns an array in the model's dtype; the shapes must be equal."""
  are_floats = (jnp.issubdtype(x.dtype, jnp.floating) for x in (array, like))
  same_kind = array.dtype == like.dtype or all(are_floats)
  if array.shape != like.shape or not same_kind:
    raise ConfigError(
      f'{source}: {name} is {array.dtype}{list(array.shape)} there and '
      f'{like.dtype}{list(like.shape)} here; to initialize it, end '
      f'config.init_rename with {(f"^{name}$", None)}'
    )
  return array.astype(like.dtype)
