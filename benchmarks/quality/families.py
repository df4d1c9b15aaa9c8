"""Tasks and families of methods that `benchmarks.quality.evidence` trains.

Where its method allows that, a setting sends at most 3 % of BSP's bytes, on a
task with four workers. FedAvg sends more with ten workers, because their epoch
is shorter. BSP may choose Muon, too: its second setting averages every gradient
and never the parameters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from selsync_jax.commands import flags, tune

BSP = 'BSP'
INT8 = '+sync.wire=int8'
SHORT = '+sync.period=5+sync.wire=int4'
MUON = 'muloco+sync.averager=mean'  # Local SGD with Muon.
STEP = '+sync.outer.learning_rate=0.7+sync.outer.momentum=0.3'  # Tuned.
BUDGET = 'selsync+sync.delta=None+sync.max_period=None+sync.lssr='

FAMILIES = {
  BSP: ('bsp', f'muloco+{tune.GRADIENTS}'),
  'local SGD': (f'local_sgd{SHORT}', f'local_sgd+sync.period=10{INT8}'),
  'local SGD, Muon': (f'{MUON}{SHORT}', f'{MUON}+sync.period=10{INT8}'),
  'local SGD, late': (
    f'local_sgd{SHORT}+sync.delay=1',
    f'{MUON}{SHORT}+sync.delay=1',
  ),
  'SelSync, budget': (f'{BUDGET}0.9{INT8}', f'{BUDGET}0.975'),
  'SelSync, delta': (
    f'selsync+sync.delta=0.3{INT8}',
    f'selsync+sync.delta=0.5{INT8}',
  ),
  'DiLoCo': (f'diloco{STEP}{SHORT}', f'edit{STEP}{SHORT}'),
  'MuLoCo': (f'muloco{STEP}{SHORT}', f'muloco{STEP}+sync.period=10{INT8}'),
  'SparseLoCo': ('sparse_loco+sync.period=10', 'sparse_loco'),
  'SPARTA': ('sparta', 'sparta+sync.fragments=50'),
  'QSR': (f'qsr+sync.h_min=10{INT8}', 'qsr+sync.h_min=40'),
  'FDA': ('fda+sync.theta=1.0', 'fda+sync.theta=10.0'),
  'FedAvg': ('fedavg+sync.epochs=0.1', f'fedavg+sync.epochs=0.025{INT8}'),
  'drift correction': (
    f'fedprox+sync.epochs=0.025{INT8}',
    'scaffold+sync.epochs=0.1',
  ),
  'server optimizers': (
    f'fedadagrad+sync.period=10{INT8}',
    f'slowmo+sync.period=10{INT8}',
  ),
  'Streaming DiLoCo': (
    'streaming_diloco+sync.period=10',
    f'streaming_diloco+sync.period=3{INT8}',
  ),
  'gossip': ('gossip+sync.period=25', 'noloco+sync.period=25'),
  'sparse gradients': ('top_k+sync.density=0.005', 'micro+sync.density=0.005'),
  'PowerSGD': ('power_sgd+sync.rank=1', 'power_sgd+sync.rank=2'),
  'quantized gradients': ('int8', 'lag+sync.bits=8'),
}
"""The settings of each family, as in `compare`."""

QUICK = 6
"""The number of families in the quick form, the first ones."""

RATES = '1x', '2x', '0.5x', '4x', '0.25x', '8x'
"""Learning rates, as in `compare`, the most likely ones first."""


def rates(count: int) -> list[Callable[[float], float]]:
  """Returns `count` learning rates, the config's own first."""
  return [*map(flags.rate, RATES[:count])]


class Task(NamedTuple):
  """A task to train.

  Attributes:
    config: the name of one of our configs, with its variant.
    title: the task's title, for a heading.
    quick: the config in the quick form.
    fields: config fields that shorten the run.
  """

  config: str
  title: str
  quick: str
  fields: dict[str, Any]


_PICTURES = {
  'steps': 600,
  'model.name': 'convnet',
  'model.depth': None,
  'model.stem': None,
  'model.num_filters': 8,
  'schedule.warmup_epochs': 0.15,
}
_BY_SOURCE = {
  'data.name': 'python_text',
  'data.partition': 'by_label',
  'data.labels_per_worker': 1,
}
TASKS = {
  'fashion_mnist': Task(
    'fashion_mnist',
    'Fashion-MNIST, four equal workers',
    'fashion_mnist',
    _PICTURES,
  ),
  'fashion_mnist_one_label': Task(
    'fashion_mnist:noniid',
    'Fashion-MNIST, ten workers with one label each',
    'fashion_mnist:noniid',
    _PICTURES,
  ),
  'stdlib_gpt': Task(
    'stdlib_gpt:middle',
    'A language model, four equal workers',
    'stdlib_gpt:smoke',
    {},
  ),
  'stdlib_gpt_by_source': Task(
    'stdlib_gpt:by_source',
    'A language model, four workers with a kind of text each',
    'stdlib_gpt:smoke',
    _BY_SOURCE,
  ),
}
