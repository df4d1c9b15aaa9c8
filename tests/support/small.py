"""Small simulations of hyperplane regression, and clocks without arrays."""

import functools

from selsync_jax.configs import hyperplane
from selsync_jax.simulate import asynchronous
from selsync_jax.simulate.cluster import create_cluster
from selsync_jax.simulate.engine import Engine
from selsync_jax.simulate.numerics import Numerics
from selsync_jax.simulate.simulation import Simulation
from selsync_jax.sync.traffic import nbytes
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup

WORKERS = 4
STEPS = 12
# A message takes 11 ms, a step 100 ms.
NETWORK = {'bandwidth': '1Mbit', 'latency': '1ms'}
NBYTES = 1250.0


def cluster(workers=WORKERS, steps=STEPS, seed=0, compute='constant', **fields):
  """A cluster whose steps take 0.1 s, with an infinitely fast network."""
  defaults = {'step_seconds': 0.1, 'bandwidth': None, 'latency': '0ms'}
  return create_cluster(
    defaults | {'compute': compute} | fields,
    workers=workers,
    steps=steps,
    seed=seed,
  )


def config(plain=False):
  """Hyperplane regression in 16 dimensions, with a full optimizer.

  With `plain`, it has plain SGD at a constant learning rate.
  """
  small = hyperplane.get_config('bsp')
  small.update(workers=WORKERS, steps=STEPS, batch_size=8, mapper='vmap')
  small.data.update(dimensions=16, backend='numpy')
  if not plain:
    small.optimizer.update(momentum=0.9, weight_decay=1e-3, clip_norm=1.0)
    small.schedule.update(name='cosine', warmup_epochs=3 / 512)
  return small


@functools.cache
def setup(plain=False):
  """The setup of `config`."""
  return create_setup(check(config(plain)))


@functools.cache
def numerics(width=None, plain=False):
  """The arrays' side of `setup`."""
  options = config(plain).optimizer.to_dict()
  return Numerics(setup(plain).problem, options, width)


def train(method, seed=0, width=None, plain=False, fields=(), **where):
  """An engine that computes; `where` is the cluster."""
  size, compute = nbytes(setup().problem.shapes), numerics(width, plain)
  sim = Simulation(cluster(**where), size, compute, seed)
  return Engine(asynchronous.create_method(method, **dict(fields)), sim)


def clock(method, seed=0, fields=(), injected=0.0, **where):
  """An engine that runs the clock alone."""
  sim = Simulation(cluster(**where), NBYTES, None, seed, injected)
  return Engine(asynchronous.create_method(method, **dict(fields)), sim)
