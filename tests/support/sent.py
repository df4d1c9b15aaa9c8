"""Compares the collectives of a training step with its parts' collectives."""

import collections

import selsync_jax as ss
from selsync_jax.sync import traffic


def difference(worker, strategy, state, batch, workers):
  """Returns collectives that only the step has, or only the parts have."""
  whole = traffic.collectives(
    worker, state, batch, workers=workers, axes=[ss.AXIS]
  )
  parts = strategy.sends(state.shared, workers, state.opt_state)
  whole, parts = (
    collections.Counter(c._replace(at='', late=0) for c in each)
    for each in (whole, parts)
  )
  return (whole - parts) + (parts - whole)
