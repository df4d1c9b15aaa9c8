"""Data by the fields of a config, and comparison of batches."""

import numpy as np

from selsync_jax.configs import base
from selsync_jax.data import assign, bind_data, open_data


def bound(**fields):
  """The `data` of the default config, with other fields."""
  data = base.get_config('bsp').data
  with data.ignore_type():
    data.update(fields)
  return bind_data(data.to_dict())


def opened(workers=2, batch_size=4, seed=0, **fields):
  """Data that a config names."""
  run = dict(workers=workers, batch_size=batch_size, seed=seed)
  return open_data(bound(**fields), **run)


def assigned(dataset, workers=2, batch_size=4, seed=0, **fields):
  """Data of an open data set."""
  return assign(dataset, bound(**fields), workers, batch_size, seed)


def same_splits(split):
  """The single split of a data set."""
  return dict.fromkeys(('train', 'validation', 'test'), split)


def assert_equal(batches, expected):
  """Asserts that both have the same bits, and are not empty."""
  count = 0
  for batch, same in zip(batches, expected, strict=True):
    assert batch.keys() == same.keys()
    for name, array in batch.items():
      assert array.dtype == same[name].dtype, name
      np.testing.assert_array_equal(array, same[name])
    count += 1
  assert count
