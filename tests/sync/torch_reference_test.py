"""Periodic averaging against PyTorch's post-local SGD, on 4 processes."""

import importlib.util
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax import methods
from selsync_jax.devices import mappers
from selsync_jax.training.step import init_state, train_step
from tests.support import live_runs

N, STEPS = 4, 12


def loss(params, model_state, batch, key):
  del key
  x, y = batch
  hidden = jnp.tanh(x @ params['w0'] + params['b0'])
  error = jnp.mean(((hidden @ params['w1'] + params['b1'])[:, 0] - y) ** 2)
  return error, ({'loss': error}, model_state)


def ours(problem, method, momentum, **fields):
  """The parameters after every step, flattened like in PyTorch."""
  context = methods.Context(steps_per_epoch=1, seed=0)
  strategy = methods.create_strategy(method, context, **fields)
  optimizer = optax.chain(
    optax.add_decayed_weights(0.01), optax.sgd(0.1, momentum=momentum)
  )
  vmap = mappers.Vmap(N)
  step = vmap.map_workers(train_step(loss, strategy, optimizer, 0))
  params = {k: problem[k] for k in ('w0', 'b0', 'w1', 'b1')}
  state = vmap.stack(init_state(params, {}, strategy, optimizer))
  trajectory = []
  for x, y in zip(problem['x'], problem['y'], strict=True):
    state, _ = step(state, (x, y))
    p = jax.device_get(state.params)
    leaves = [p['w0'].swapaxes(1, 2), p['b0'], p['w1'].swapaxes(1, 2), p['b1']]
    trajectory.append(np.concatenate([x.reshape(N, -1) for x in leaves], 1))
  return np.stack(trajectory)


# By method: PyTorch's settings, our fields, and the steps that average.
VARIANTS = {
  'local_sgd': (
    dict(switch=0, period=3, momentum=0.9),
    {'period': 3},
    [3, 6, 9, 12],
  ),
  # PyTorch averages gradients before the switch, so all workers share a
  # momentum there. Without momentum that equals an average of parameters.
  'post_local': (
    dict(switch=4, period=3, momentum=0.0),
    {'switch': 4.0, 'period': 3},
    [1, 2, 3, 4, 7, 10],
  ),
}


@pytest.mark.slow
@pytest.mark.skipif(
  importlib.util.find_spec('torch') is None,
  reason="needs the extra 'reference' (torch)",
)
def test_twelve_steps_equal_pytorchs(tmp_path):
  rng = np.random.default_rng(0)
  shapes = dict(x=(STEPS, N, 16, 6), y=(STEPS, N, 16))
  shapes |= dict(w0=(6, 8), b0=(1, 8), w1=(8, 1), b1=(1, 1))
  problem = {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }
  np.savez(tmp_path / 'problem.npz', **problem)
  told = {method: options for method, (options, *_) in VARIANTS.items()}
  (tmp_path / 'variants.json').write_text(json.dumps(told))
  done = live_runs.run(
    *('env', '-u', 'PYTHONWARNINGS'),  # PyTorch calls deprecated functions.
    *(sys.executable, '-m', 'tests.support.torch_local_sgd', tmp_path),
  )
  assert done.returncode == 0, done.stderr
  theirs = np.load(tmp_path / 'torch.npz')
  for method, (options, fields, averages) in VARIANTS.items():
    found = ours(problem, method, options['momentum'] or None, **fields)
    np.testing.assert_allclose(found, theirs[method], rtol=0, atol=1e-5)
    # Replicas differ between averages in both, and only there.
    equal = (theirs[method] == theirs[method][:, :1]).all(axis=(1, 2))
    assert (np.flatnonzero(equal) + 1).tolist() == averages
