"""An island that trains until it is killed: `INVITATION NAME`."""

import sys

import jax.numpy as jnp

import selsync_jax as ss

strategy = ss.Strategy(ss.selsync(0.3), ss.delayed(ss.mean(), 2))
params = jnp.zeros(1000)
island = ss.Island.join(*sys.argv[1:], params, strategy, timeout=3.0)
params = island.after_step(params, params + 1)
print('training', flush=True)
while True:
  params = island.after_step(params - 0.1, params + 1)
