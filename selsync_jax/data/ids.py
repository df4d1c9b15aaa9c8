"""The check of token ids, and of the mask that leaves out some of them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

LOSS_MASK = 'loss_mask'
"""The array of a batch that says which of its targets count in the loss."""

_BLOCK = 2**24  # Elements that are compared at once.


class Check(NamedTuple):
  """The check of a data set's batches.

  For an id outside the range, JAX would silently read another element.
  """

  targets: tuple[str, ...]  # Names of arrays that the task indexes with.
  inputs: tuple[str, ...]  # Likewise, of arrays that the model indexes with.
  num_classes: int

  def __call__(self, batch: Mapping[str, Any]) -> None:
    """Raises `ValueError` for the first element outside its range.

    A target that the mask leaves out may be any number.
    """
    mask = batch.get(LOSS_MASK)
    if mask is not None:
      self._check_mask(batch, mask)
    for name in self.inputs:
      self._check_range(name, batch)
    for name in self.targets:
      self._check_range(name, batch, mask)

  def _check_mask(self, batch, mask):
    for name in self.targets:
      if name in batch and batch[name].shape != mask.shape:
        raise ValueError(
          f'{LOSS_MASK} has shape {mask.shape}, and {name} '
          f'{batch[name].shape}: must be equal'
        )
    for rows in _blocks(mask):
      if not np.isin(mask[rows], (0, 1)).all():
        raise ValueError(f'{LOSS_MASK} must be 1 where a token counts, or 0')

  def _check_range(self, name, batch, mask=None):
    ids = batch.get(name)
    if ids is None or ids.dtype.kind not in 'iu':  # The task reads no index.
      return
    limits = np.iinfo(ids.dtype)
    if limits.min >= 0 and limits.max < self.num_classes:
      return
    for rows in _blocks(ids):
      some = ids[rows]
      if some.min() >= 0 and some.max() < self.num_classes:
        continue
      wrong = (some < 0) | (some >= self.num_classes)
      if mask is not None:
        wrong &= mask[rows] != 0
      if wrong.any():
        raise ValueError(
          f'{name} has {some[wrong][0]}: must be from 0 to '
          f'{self.num_classes - 1}, below num_classes={self.num_classes}'
          + f'; an array {LOSS_MASK} leaves tokens out'
          * (name in self.targets)
        )


def _blocks(array):
  """Yields slices of the first axis, of some megabytes each."""
  size = max(1, _BLOCK * len(array) // max(1, array.size))
  return (slice(i, i + size) for i in range(0, len(array), size))
