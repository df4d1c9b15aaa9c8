"""Values per worker of a logged step, as compact text, and their quantiles.

Many workers would make the rows of `metrics.jsonl` long. Their values are
therefore compressed, written as base64, and kept in a separate file. zlib adds
a checksum, so damage is detected.
"""

import base64
from collections.abc import Mapping
from typing import Any, TypedDict
import zlib

from jaxtyping import Shaped
import numpy as np

from selsync_jax.runs import files

# The type of a value of each column. The ledgers define the values.
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
  """Returns the values per worker in a row of a ledger."""
  return {
    name: np.array(row[name], dtype)
    for name, dtype in COLUMNS.items()
    if name in row
  }


def encode(values: Arrays) -> dict[str, str]:
  """Encodes each array as text."""
  return {
    name: base64.b64encode(zlib.compress(array.tobytes())).decode()
    for name, array in values.items()
  }


def parse(line: bytes) -> dict[str, Any]:
  """Returns a line's step and arrays; a damaged one raises `ValueError`."""
  texts = files.parse(line, _Line)
  return {
    name: text if name == 'step' else _decode(name, text)
    for name, text in texts.items()
  }


def _decode(name: str, text: str) -> np.ndarray:
  if name not in COLUMNS:
    raise ValueError(f'{name} is not a column')
  try:
    content = zlib.decompress(base64.b64decode(text, validate=True))
  except (TypeError, zlib.error) as error:
    raise ValueError(f'{name}: {error}') from error
  return np.frombuffer(content, COLUMNS[name])


def quantiles(values: Arrays) -> dict[str, list[float]]:
  """Returns the minimum, quartiles and maximum of each array of numbers.

  Each is one of the values, with enough digits to distinguish it from its
  neighbors. NaN is ignored; an array without other values has no quantiles.
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
