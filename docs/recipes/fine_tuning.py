"""Fine-tuning: the digits' network learns to tell odd digits from even ones.

python train.py
python train.py --config=docs/recipes/fine_tuning.py
"""

import numpy as np
from sklearn import datasets

import selsync_jax as ss
from selsync_jax import data
from selsync_jax.configs import digits


@ss.register_dataset
def odd_digits():
  """Returns 200 digits to train with; the label is 1 for odd digits."""
  pixels, label = datasets.load_digits(return_X_y=True)
  image = np.float32(pixels).reshape(-1, 8, 8, 1) / 16

  def part(*limits):
    chosen = slice(*limits)
    return {'image': image[chosen], 'label': label[chosen] % 2}

  return data.from_arrays(
    train=part(200),
    validation=part(200, 600),
    test=part(600, None),
    task='classification',
    num_classes=2,
  )


def get_config(method='selsync'):
  """Returns 20 epochs at a tenth of the rate, with a new last layer."""
  config = digits.get_config(method)
  config.init_from = 'runs/digits-selsync'
  config.init_rename = (('^params/Dense_1/', None),)
  config.data.name = 'odd_digits'
  config.epochs = 20.0
  config.optimizer.learning_rate = 0.01
  config.schedule.warmup_epochs = 0.0
  return config
