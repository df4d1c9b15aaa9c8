"""Hyperplane regression on eight workers, the first workload of eager-SGD.

Li et al., `Taming Unbalanced Training Workloads in Deep Learning with Partial
Collective Operations`, PPoPP 2020, section 6: a linear model on points of a
hyperplane with noise, 8 processes, 256 examples each, 48 epochs. Ours has 512
dimensions and 16,384 points, not 8,192 dimensions, so that it takes seconds.
The loss is the mean squared error. It is at least the variance of the noise,
0.01.

  python train.py --config=configs/hyperplane.py:bsp
"""

from selsync_jax.configs import base

# 1% of 513 parameters would be fewer than one for each worker. With 2%, waiting
# elements overshoot at this learning rate: MiCRO's threshold grows without end.
OVERRIDES = {name: dict(density=0.05) for name in ('top_k', 'micro', 'exdyna')}


def get_config(method: str = 'selsync', overrides=OVERRIDES):
  config = base.get_config(method, overrides)
  config.update(workers=8, epochs=48.0, batch_size=256)
  config.data.name = 'hyperplane'
  config.model.name = 'linear'
  base.set_optimizer(config, learning_rate=0.05)
  config.eval.every_epochs = 4.0
  return config
