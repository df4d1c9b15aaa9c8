"""Hyperplane regression: points on a hyperplane, with noise, from a seed.

References:
  Li et al., `Taming Unbalanced Training Workloads in Deep Learning with Partial
  Collective Operations`, PPoPP 2020, section 6 (the task, there with 8,192
  dimensions, which take a gigabyte).
"""

from typing import Annotated

from annotated_types import Interval
import numpy as np

from selsync_jax.data import arrays, protocol

NOISE = 0.1  # Standard deviation; without noise the target's is 1.
# Never change these: scores would not be comparable.
_SEED = 0
_SIZES = {'train': 16_384, 'validation': 2_048, 'test': 2_048}


def hyperplane(
  *, dimensions: Annotated[int, Interval(ge=1, le=2**16)] = 512
) -> arrays.ArrayDataset:
  """Returns features from N(0, 1), and as target their noisy weighted sum."""
  rng = np.random.default_rng(_SEED)
  weights = rng.normal(size=dimensions) / np.sqrt(dimensions)

  def examples(size) -> protocol.Examples:
    features = rng.normal(size=(size, dimensions))
    target = features @ weights + NOISE * rng.normal(size=size)
    return {
      'features': features.astype(np.float32),
      'target': target.astype(np.float32),
    }

  return arrays.ArrayDataset(
    'hyperplane',
    task='regression',
    num_classes=1,
    splits={split: examples(size) for split, size in _SIZES.items()},
    transform=protocol.unchanged,
  )
