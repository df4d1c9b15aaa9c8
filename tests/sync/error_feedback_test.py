"""Compression loses nothing, and a reducer may contain a reducer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.sync import power_sgd, reducers, sparse
from tests.support.reduction import run

N = 4
REDUCERS = {
  'int8': reducers.int8(),
  'top_k': sparse.top_k(0.05),
  'micro': sparse.micro(0.05),
  'exdyna': sparse.exdyna(0.05),
  'power_sgd': power_sgd.power_sgd(2),
}


def draw(steps):
  rng = np.random.default_rng(0)
  shapes = {'bias': (steps, N, 24), 'kernel': (steps, N, 40, 24)}
  return {
    name: rng.normal(size=shape).astype(np.float32) * np.float32(0.01)
    for name, shape in shapes.items()
  }


def flat(tree, axes):
  """Leaves as one array, behind their first axes."""
  leaves = [x.reshape(*x.shape[:axes], -1) for x in jax.tree.leaves(tree)]
  return np.concatenate(leaves, axis=-1, dtype=np.float64)


@pytest.mark.parametrize('name', REDUCERS)
def test_applied_and_waiting_parts_add_up_to_the_gradient(name):
  broken, grads = 15, draw(40)
  grads['kernel'][broken, 2, 0, 0] = np.nan
  means, states = run(REDUCERS[name], grads)
  given = flat(grads, 2)
  applied, waits = flat(means, 2), flat(states.error, 2)
  # PowerSGD's error memory has no bias, which comes first.
  waits = np.pad(
    waits, [(0, 0), (0, 0), (given.shape[-1] - waits.shape[-1], 0)]
  )
  assert np.abs(waits).max() > 0
  # All workers see that a gradient is not finite, and then forget it.
  assert np.isnan(applied[broken]).all()
  for field, value in states._asdict().items():
    if field not in ('selection', 'overflow'):  # They describe the message.
      for leaf in jax.tree.leaves(value):
        np.testing.assert_array_equal(leaf[broken], leaf[broken - 1])
  applied[broken] = given[broken] = 0
  assert (applied == applied[:, :1]).all()
  np.testing.assert_allclose(
    N * applied[:, 0].cumsum(axis=0) + waits.sum(axis=1),
    given.sum(axis=1).cumsum(axis=0),
    atol=1e-5,
  )


@pytest.mark.parametrize('workers, steps', [(4, 1000), (64, 50)])
def test_the_mean_in_int8_does_not_drift(workers, steps):
  rng = np.random.default_rng(0)
  grads = rng.uniform(-1, 1, size=(steps, workers, 1000)).astype(np.float32)
  grads[:, :, :500] *= np.float32(0.01)
  means, states = run(reducers.int8(), grads)
  # A worker rounds its vector, and keeps N times the rounding error of the
  # means; its next vector is rounded with both errors.
  rounding = 1e-4  # Rounding of float32.
  bound = (workers + 1 + (workers - 1) / 253) / 252 + rounding
  assert np.abs(states.error[0]).max() < bound
  drift = (means[:, 0] - grads.mean(axis=1, dtype=np.float64)).cumsum(axis=0)
  assert np.abs(drift).max() < bound
  # It stays at its early size.
  tenth = steps // 10
  early, late = drift[tenth : 2 * tenth], drift[-tenth:]
  assert np.abs(late).mean() < 1.1 * np.abs(early).mean()


GRADS = jnp.array([[0.3, 0.4], [300.0, 400.0], [0.0, -2.0], [0.0, 0.0]])
CLIPPED = np.array([[0.3, 0.4], [0.6, 0.8], [0.0, -1.0], [0.0, 0.0]])


@pytest.mark.parametrize('sync', [False, True])
def test_each_workers_gradient_is_clipped_before_the_mean(sync):
  clipped = ss.reducers.clipped(1.0, ss.all_reduce())
  for reducer in (clipped, ss.at_sync(clipped)):
    mapped = jax.vmap(
      lambda g, reducer=reducer: reducer.update(
        g, reducer.init(g), sync=jnp.bool(sync)
      )[0],
      axis_name=ss.AXIS,
    )
    at_sync = not reducer.traits.every_step
    expected = GRADS if at_sync and not sync else [CLIPPED.mean(0)] * 4
    np.testing.assert_allclose(mapped(GRADS), expected, rtol=1e-6)
    assert reducer.sends(GRADS[0], 4)[0].nbytes == 8
