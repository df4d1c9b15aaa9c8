"""Handwritten digits on four workers: the default run.

The data set ships with scikit-learn: real images of 8x8 pixels, 1,257 for
training and 360 for testing. The model is a convolutional network with 151,306
parameters. A run takes seconds on a CPU.

  python train.py
  python train.py --config=configs/digits.py:bsp
"""

from selsync_jax.configs import base

# This delta keeps nine of ten steps local. A custom model needs no delta:
# without one, a budget keeps as many steps local.
OVERRIDES = {'selsync': dict(delta=1.0)}


def get_config(method: str = 'selsync', overrides=OVERRIDES):
  config = base.get_config(method, overrides)
  config.epochs = 30.0
  config.model.update(name='convnet', num_filters=32)
  base.set_optimizer(
    config, learning_rate=0.1, momentum=0.9, weight_decay=1e-4, clip_norm=1.0
  )
  config.schedule.update(name='cosine', warmup_epochs=3.0)
  return config
