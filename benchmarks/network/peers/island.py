"""Workers that are islands: a config file for `selsync train`."""

import flax.linen as nn
import jax
from sklearn import datasets

from benchmarks.network import peers
import selsync_jax as ss
from selsync_jax import data
from selsync_jax.configs import base

# As in PyTorch on a CPU, a step ends before the next one begins.
jax.config.update('jax_cpu_enable_async_dispatch', False)

lines: peers.Lines | None = None


@ss.register_writer
class Begun:
  """Begins the lines when the training begins; earlier batches only compile."""

  def __init__(self, workdir, step, config):
    global lines
    lines = peers.Lines()

  def write(self, row):
    """Ignores a row."""

  def __enter__(self):
    return self

  def __exit__(self, *exc):
    pass


@ss.register_dataset
def paced_digits():
  """Returns the digits, with a pause before each batch."""

  def pause(batch, key):
    if lines:
      if lines.pending == peers.PERIOD:  # The average is over.
        lines.average()
      lines.begin_step()
    return batch

  def part(start, stop):
    return {'image': image[start:stop], 'label': label[start:stop]}

  image, label = datasets.load_digits(return_X_y=True)
  image = image.astype('float32') / 16
  return data.from_arrays(
    train=part(0, 1100),
    validation=part(1100, 1450),
    test=part(1450, 1797),
    task='classification',
    num_classes=10,
    augment=pause,
  )


@ss.register_model
class Hidden(nn.Module):
  """A network with two hidden layers."""

  num_classes: int

  @nn.compact
  def __call__(self, x, *, train):
    """Returns the scores of images [batch, 64]."""
    for _ in range(2):
      x = nn.relu(nn.Dense(peers.WIDTH)(x))
    return nn.Dense(self.num_classes)(x)


def get_config(method: str = 'local_sgd'):
  """Returns a run that outlasts the benchmark."""
  config = base.get_config(method)
  config.steps, config.batch_size = 1_000_000, peers.BATCH
  config.sync.period = peers.PERIOD
  config.data.update(name='paced_digits', backend='numpy')
  config.model.name = 'Hidden'
  config.optimizer.learning_rate = peers.RATE
  config.eval.every_epochs = 1e6
  config.checkpoint.every = 1_000_000
  config.log.to = ('Begun',)
  return config
