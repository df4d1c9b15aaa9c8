"""Handwritten digits that ship with scikit-learn.

References:
  Alpaydin and Kaynak, `Optical Recognition of Handwritten Digits`, UCI Machine
  Learning Repository, 1998.
"""

import hashlib
from typing import Literal

import numpy as np

from selsync_jax.data.arrays import ArrayDataset
from selsync_jax.data.arrays import Examples
from selsync_jax.data.order import ShuffledChunk
from selsync_jax.data.sources.source import Pixels

# Never change these, nor the order of the examples: scores would not be
# comparable.
_SPLIT_SEED = 0
_TEST, _VALIDATION = 360, 180


def all_digits() -> Examples:
  """Returns all 1,797 images [n, 8, 8, 1] in 17 gray levels, and labels."""
  from sklearn import datasets  # Takes a second to import.

  images, labels = datasets.load_digits(return_X_y=True)
  return {
    'image': np.asarray(images, np.uint8).reshape(-1, 8, 8, 1),
    'label': np.asarray(labels, np.int32),
  }


def split_digits(labels: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the example indices of each split, sorted, stratified by label."""
  from sklearn import model_selection  # Takes a second to import.

  def stratified(indices, size):
    return model_selection.train_test_split(
      indices,
      test_size=size,
      stratify=labels[indices],
      random_state=_SPLIT_SEED,
    )

  train, test = stratified(np.arange(len(labels)), _TEST)
  train, validation = stratified(train, _VALIDATION)
  splits = {'train': train, 'validation': validation, 'test': test}
  return {split: np.sort(indices) for split, indices in splits.items()}


def _shuffled(indices: np.ndarray, split: str) -> np.ndarray:
  """Returns the indices sorted by their MD5, with the split as salt."""
  return np.array(
    sorted(
      indices.tolist(),
      key=lambda i: hashlib.md5(f'{split}{i}'.encode()).digest(),
    )
  )


def digits(
  *, image_size: Pixels | None = None, channels: Literal[1, 3] | None = None
) -> ArrayDataset:
  """Returns gray images in [0, 1], with equal channels.

  Args:
    image_size: the pixels per side, at least 1; `None` is 8, the original.
    channels: the number of channels, 1 or 3; `None` is 1.
  """
  every = all_digits()
  indices = {
    split: _shuffled(split_indices, split)
    for split, split_indices in split_digits(every['label']).items()
  }

  def transform(examples):
    image = examples['image'] / 16
    if image_size:
      from selsync_jax.data.tfdata import augment  # Imports TensorFlow.

      image = augment.resize(image, image_size)
    same = np.ones(channels or 1, np.float32)
    return {'image': image * same, 'label': examples['label']}

  return ArrayDataset(
    'digits',
    task='classification',
    num_classes=10,
    order=ShuffledChunk(),
    splits={
      split: {name: array[rows] for name, array in every.items()}
      for split, rows in indices.items()
    },
    transform=transform,
    dtypes={'image': np.float32},
    only_tf=f"image_size={image_size}: only data.backend='tf' can resize digits"
    if image_size
    else '',
  )
