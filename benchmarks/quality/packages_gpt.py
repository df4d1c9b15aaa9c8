"""A decoder on the Python source of the installed packages, byte by byte.

  python compare.py --config=benchmarks/quality/packages_gpt.py \
    --config.data.backend=numpy --config.mapper=vmap --lrs=0.5x,1x --seeds=1 \
    --methods=bsp,diloco+sync.period=25,diloco+sync.period=100,diloco+sync.period=500

A model of 51 million parameters needs more text than Python's library has. The
installed packages are the most text that a machine without a network has: one
epoch reads no byte twice. The packages differ by machine, so losses of two
machines cannot be compared. Needs a GPU.
"""

from collections.abc import Sequence
import hashlib
import pathlib
import sysconfig

import numpy as np

import selsync_jax as ss
from selsync_jax import data
from selsync_jax.configs import base, stdlib_gpt
from selsync_jax.data.sources.text import split_of

MOST = {'train': 2**26, 'validation': 2**20, 'test': 2**20}  # Bytes of text.


def _names(folder: pathlib.Path) -> list[str]:
  """The files of a folder in an order that does not depend on their content."""
  names = [str(path.relative_to(folder)) for path in folder.rglob('*.py')]
  return sorted(names, key=lambda name: hashlib.md5(name.encode()).digest())


def _examples(
  folder: pathlib.Path, names: Sequence[str], split: str, bptt: int
) -> dict[str, np.ndarray]:
  text = bytearray()
  for name in names:
    if split_of(name) == split:
      text += (folder / name).read_bytes()
    if len(text) >= MOST[split]:
      break
  count = min(len(text), MOST[split]) // (bptt + 1)
  tokens = np.frombuffer(text, np.uint8)[: count * (bptt + 1)]
  return {'tokens': tokens.reshape(count, bptt + 1)}


@ss.register_dataset
def package_text(*, bptt: int = 256):
  """The source of all packages as bytes, with `bptt` bytes in an example."""
  folder = pathlib.Path(sysconfig.get_path('purelib'))
  names = _names(folder)
  return data.from_arrays(
    **{split: _examples(folder, names, split, bptt) for split in MOST},
    task='language_modeling',
    num_classes=256,
    transform=lambda examples: {
      'inputs': np.int32(examples['tokens'][:, :-1]),
      'targets': np.int32(examples['tokens'][:, 1:]),
    },
  )


def get_config(method='diloco'):
  """Four workers, 2,000 steps of 16,384 tokens: half an epoch of 64 MB."""
  config = stdlib_gpt.get_config(method)
  config.steps = 2000
  config.data.update(name='package_text', bptt=256)
  config.model.update(
    num_layers=7, embed_dim=768, num_heads=12, mlp_dim=2112, dropout=0.0
  )
  base.set_optimizer(config, learning_rate=4e-4)
  config.schedule.warmup_epochs = 0.05
  return config
