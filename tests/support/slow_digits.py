"""A config whose steps leave the CPU idle, like steps on a GPU.

Digits, from a data set whose batches take STEP_PAUSE seconds (an environment
variable). SIGUSR1 holds Python's lock for a minute, like an extension that
hangs: no thread of the process runs, while the system answers for it.
"""

import ctypes
from importlib import util
import os
import pathlib
import signal
import time

import numpy as np

import selsync_jax as ss
from selsync_jax import data
from selsync_jax.configs import digits

HELD = 60  # Seconds.


@ss.register_dataset
def slow_digits():
  """Handwritten digits that take some seconds per batch of a worker."""
  pause = float(os.environ.get('STEP_PAUSE', '0'))
  # Importing scikit-learn would take as long as importing JAX and the rest.
  (folder,) = util.find_spec('sklearn').submodule_search_locations
  file = pathlib.Path(folder, 'datasets', 'data', 'digits.csv.gz')
  found = np.loadtxt(file, delimiter=',')
  image = found[:, :-1].reshape(-1, 8, 8, 1).astype('float32') / 16
  target = found[:, -1].astype(int)

  def rest(batch, key):
    time.sleep(pause)
    return batch

  def part(start, stop):
    return {'image': image[start:stop], 'label': target[start:stop]}

  return data.from_arrays(
    train=part(0, 1100),
    validation=part(1100, 1450),
    test=part(1450, 1797),
    task='classification',
    num_classes=10,
    augment=rest,
  )


def get_config(method: str = 'selsync'):
  """The digits' config with this data set."""
  config = digits.get_config(method)
  config.data.name = 'slow_digits'
  return config


signal.signal(signal.SIGUSR1, lambda *_: ctypes.PyDLL(None).sleep(HELD))
