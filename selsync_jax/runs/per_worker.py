"""Values per worker of a logged step, as compact text, and their quantiles.

With 256 workers, numbers in JSON would make a row of `metrics.jsonl` as long as
a page. Arrays are therefore compressed, written as base64, and kept in a file
of their own. The compressed data end with a checksum, so damage is found.
"""

import base64
from collections.abc import Mapping
from typing import Any, TypedDict
import zlib

from jaxtyping import Shaped
import numpy as np

from selsync_jax.runs import files

# By column, the type of a value; the ledgers say what the values are.
COLUMNS = {
  'relative_changes': np.dtype('<f4'),
  'staleness': np.dtype('<i4'),
  'version': np.dtype('<i4'),
  'waited': np.dtype('<f4'),
  # Worker, kind, start, end, version.
  'spans': np.dtype('<i4,<U11,<f8,<f8,<i4'),
}
_SHARES = np.array([0, 0.25, 0.5, 0.75, 1])

Arrays = dict[str, Shaped[np.ndarray, '...']]


class _Line(TypedDict):
  step: int


def arrays(row: Mapping[str, Any]) -> Arrays:
  """The values per worker in a row of a ledger."""
  return {
    name: np.array(row[name], dtype)
    for name, dtype in COLUMNS.items()
    if name in row
  }


def encode(values: Arrays) -> dict[str, str]:
  """Each array as text."""
  return {
    name: base64.b64encode(zlib.compress(array.tobytes())).decode()
    for name, array in values.items()
  }


def parse(line: bytes) -> dict[str, Any]:
  """The step of a line, and the arrays in it.

  Raises:
    ValueError: if the line is damaged.
  """
  texts = files.parse(line, _Line)
  return {
    name: text if name == 'step' else _decode(name, text)
    for name, text in texts.items()
  }


def _decode(name: str, text: str) -> np.ndarray:
  if name not in COLUMNS:
    raise ValueError(f'{name} is no column')
  try:
    content = zlib.decompress(base64.b64decode(text, validate=True))
  except (TypeError, zlib.error) as error:
    raise ValueError(f'{name}: {error}') from error
  return np.frombuffer(content, COLUMNS[name])


def quantiles(values: Arrays) -> dict[str, list[float]]:
  """Least, quartiles, and largest of each array of numbers.

  Each is one of the values, with as many digits as tell it from its neighbors;
  NaN does not count. An array without any value has none.
  """
  return {
    f'{name}_quantiles': _quantiles(array)
    for name, array in values.items()
    if array.dtype.names is None
  }


def _quantiles(array: np.ndarray) -> list[float]:
  known = np.sort(array[~np.isnan(array)])
  if not known.size:
    return []
  chosen = known[np.rint(_SHARES * (known.size - 1)).astype(int)]
  if np.issubdtype(array.dtype, np.integer):
    return chosen.tolist()
  return [float(str(value)) for value in chosen]
