"""AlexNet on ImageNet-1K: the workload with the largest data set.

  python train.py --config=configs/imagenet_alexnet.py:selsync
  python train.py --config=configs/imagenet_alexnet.py:selsync,smoke

Paper: Tyagi and Swany, CLUSTER 2023, table I: top-5 accuracy 86.72 % at LSSR
0.954 with delta 0.3 (BSP 85.15 %), on 16 V100 GPUs in 4 servers at 5 Gbit/s.
Batch size, optimizer and learning rate are the paper's. 170 epochs are the
106,500 iterations of its BSP.

Needs 16 accelerators, and hosts fast enough to decode the images. 61,100,840
parameters.

Measured: the full workload was not run. The smoke variant (16 filters, digits
at 64x64): 92.2 % test accuracy (top-5 99.7 %) at LSSR 0.845, 200 steps in 11 s
on 2 cores of an AMD EPYC, jax 0.10.2, seed 0.
"""

from selsync_jax.configs import base


def get_config(argument: str = 'selsync'):
  method, smoke = base.split(argument)
  config = base.get_config(method, base.PAPER)
  config.update(workers=16, epochs=170.0, batch_size=128)
  config.data.name = 'imagenet2012'
  config.model.update(
    name='alexnet', num_filters=64, mlp_dim=4096, dtype='bfloat16'
  )
  base.set_optimizer(config, name='adam', learning_rate=1e-4)
  config.schedule.name = 'constant'
  if smoke:
    base.shrink(config)
    config.epochs = 20.0
    config.batch_size = 32
    config.data.update(name='digits', image_size=64)
    config.model.update(num_filters=16, mlp_dim=128, pool_size=1)
    base.set_optimizer(config, learning_rate=1e-3)
  return config
