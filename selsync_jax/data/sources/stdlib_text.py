"""The source text of Python's standard library, present on every machine."""

import hashlib
import pathlib
import sysconfig

import numpy as np

from selsync_jax.data.arrays import ArrayDataset
from selsync_jax.data.arrays import SPLITS
from selsync_jax.data.order import TextStreams
from selsync_jax.data.sources.source import Tokens
from selsync_jax.data.sources.text import next_token
from selsync_jax.data.sources.text import segments


def split_of(name: str) -> str:
  """Returns the split of a file, by its name alone; they are 8 : 1 : 1."""
  tenth = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % 10
  return {0: 'test', 1: 'validation'}.get(tenth, 'train')


def files_of(split: str) -> list[pathlib.Path]:
  """Returns a split's .py files at the library's top level, sorted by name."""
  folder = pathlib.Path(sysconfig.get_path('stdlib'))
  return sorted(p for p in folder.glob('*.py') if split_of(p.name) == split)


def stdlib_text(*, bptt: Tokens) -> ArrayDataset:
  """Returns the bytes of the standard library, for language modeling.

  Args:
    bptt: the number of tokens in an example, at least 1.
  """

  def examples(split):
    text = b''.join(path.read_bytes() for path in files_of(split))
    return {'tokens': segments(np.frombuffer(text, np.uint8), bptt)}

  return ArrayDataset(
    'stdlib_text',
    task='language_modeling',
    num_classes=256,  # Bytes.
    order=TextStreams(),
    splits={split: examples(split) for split in SPLITS},
    transform=next_token,
    dtypes={'tokens': np.int32},
  )
