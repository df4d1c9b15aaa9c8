"""Functions of one worker under `shard_map`."""

import jax

import selsync_jax as ss

ROW = jax.P(ss.AXIS)


def rows_of(fn):
  """Returns a function of one worker as a function of blocks with one row."""

  def block(*rows):
    result = fn(*jax.tree.map(lambda x: x.squeeze(0), rows))
    return jax.tree.map(lambda x: x[None], result)

  return block


def shard_map(block, workers=4, **options):
  """Returns a compiled function of blocks, one for each worker."""
  mesh = jax.sharding.Mesh(jax.devices()[:workers], (ss.AXIS,))
  options = {'in_specs': ROW, 'out_specs': ROW} | options
  return jax.jit(jax.shard_map(block, mesh=mesh, **options))
