"""Reducers that contain a reducer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss

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
