"""VGG-11 on CIFAR-100: the workload with the largest messages.

  python train.py --config=configs/cifar100_vgg11.py:selsync
  python train.py --config=configs/cifar100_vgg11.py:selsync,smoke

Paper: Tyagi and Swany, CLUSTER 2023, table I: accuracy 91.33 % at LSSR 0.912
with delta 0.3 (BSP 90.9 %), on 16 V100 GPUs in 4 servers at 5 Gbit/s. The table
says top-1, but the values look like top-5; runs here report both. The paper's
speedup of 13.75 (delta 0.5) contradicts its own iterations and LSSR. Batch
size, optimizer, learning rate and decay are the paper's. 110 epochs are the
10,800 iterations of its BSP. The network is torchvision's; with 1,000 classes,
its dense layers account for most of the paper's 507 MB. For 32x32 images the
last feature map is 1x1, repeated to 7x7.

Needs 16 accelerators. 129,176,036 parameters.

Measured: the full workload was not run. The smoke variant (8 filters, digits):
91.7 % test accuracy (top-5 99.2 %) at LSSR 0.985, 200 steps in 21 s on 2 cores
of an AMD EPYC, jax 0.10.2, seed 0.
"""

from selsync_jax.configs import base


def get_config(argument: str = 'selsync'):
  method, smoke = base.split(argument)
  config = base.get_config(method, base.PAPER)
  config.update(workers=16, epochs=110.0, batch_size=32)
  config.data.name = 'cifar100'
  config.model.update(
    name='vgg11', num_filters=64, mlp_dim=4096, dtype='bfloat16'
  )
  base.set_optimizer(
    config, learning_rate=0.01, momentum=0.9, weight_decay=5e-4
  )
  config.schedule.update(name='milestones', milestones=(50.0, 75.0), factor=0.1)
  if smoke:
    base.shrink(config)
    config.epochs = 20.0
    config.data.update(name='digits', image_size=32)
    # With so few filters, it learns only with batch normalization.
    config.model.update(num_filters=8, mlp_dim=64, pool_size=1, batch_norm=True)
    config.schedule.milestones = (10.0, 15.0)
  return config
