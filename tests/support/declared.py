"""The collectives that parts name, beside those of the traced program."""

import jax

import selsync_jax as ss
from selsync_jax.training.declared import issued


def difference(worker, strategy, state, batch, workers):
  """What the program of one worker has and the parts do not name, or too much.

  A message whose length depends on the values has a branch for each length.
  """
  program = jax.make_jaxpr(worker, axis_env=[(ss.AXIS, workers)])(state, batch)
  found, scaled = issued(program), set()
  for c in strategy.sends(state.shared, workers, state.opt_state):
    if c.scale:
      scaled.add(c.kind)
    else:
      found[c.kind, c.nbytes, c.at == 'sync' or c.rate < 1] -= 1
  left = {key: n for key, n in found.items() if n}
  kinds = {kind for kind, _, _ in left}
  if kinds == scaled and all(
    inside and n > 0 for (*_, inside), n in left.items()
  ):
    return {}
  return left or {kind: 0 for kind in scaled}
