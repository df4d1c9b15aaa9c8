"""The collectives of a whole training step, beside those of its parts."""

import collections

import selsync_jax as ss
from selsync_jax.sync import traffic


def difference(worker, strategy, state, batch, workers):
  """What a step has, and the parts alone do not have, or too much."""
  whole = traffic.collectives(
    worker, state, batch, workers=workers, axes=[ss.AXIS]
  )
  parts = strategy.sends(state.shared, workers, state.opt_state)
  whole, parts = (
    collections.Counter(c._replace(at='', late=0) for c in each)
    for each in (whole, parts)
  )
  return (whole - parts) + (parts - whole)
