"""Files in the format IDX, in which the MNIST data sets are published."""

import gzip
import math
import pathlib
import zlib

import numpy as np

_BYTES = 0x0800  # The first word of an array of bytes, minus its dimensions.


def read(folder: pathlib.Path, name: str, dimensions: int) -> np.ndarray:
  """Returns the array of a file, which may be compressed.

  Raises:
    ValueError: if the folder has no such file, or it holds no such array.
  """
  path = folder / name
  compressed = folder / f'{name}.gz'
  try:
    if compressed.exists():
      content = gzip.decompress(compressed.read_bytes())
    else:
      content = path.read_bytes()
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(f'{name}: {error}') from error
  start = 4 + 4 * dimensions
  head = content[:start].ljust(start, b'\0')
  word, *shape = np.frombuffer(head, '>u4').tolist()
  if word != _BYTES + dimensions or start + math.prod(shape) != len(content):
    raise ValueError(f'{name}: not an IDX file of a {dimensions}-D byte array')
  return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
