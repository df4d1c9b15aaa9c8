r"""Digits on ten workers with one label each: the paper's non-IID experiment.

The paper gives each of ten workers one label of CIFAR-10; here each has one
digit. An epoch has 16 steps, so a quarter of it, the period of FedAvg, has 4.

  python train.py --config=configs/digits_noniid.py:selsync
  python compare.py --config=configs/digits_noniid.py --lrs=0.03,0.1,0.3 \
    --methods=bsp,fedavg,fedprox,scaffold,selsync,selsync+sync.delta=None,\
selsync+data.injection.alpha=0.5+data.injection.beta=0.5
"""

from selsync_jax.configs import digits

OVERRIDES = {'selsync': dict(delta=0.3, smoothing=0.1)}


def get_config(method: str = 'selsync'):
  config = digits.get_config(method, OVERRIDES)
  config.update(workers=10, mapper='auto', batch_size=8, epochs=20.0)
  config.data.update(partition='by_label', labels_per_worker=1)
  return config
