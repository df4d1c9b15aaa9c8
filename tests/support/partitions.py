"""Partitions by name."""

from selsync_jax.config import bind
from selsync_jax.data.partitions import divided, PARTITIONS


def make_partition(
  name,
  examples,
  workers,
  batch_size,
  seed,
  *,
  labels=None,
  contiguous=False,
  **fields,
):
  """The partition `name` with its fields; see `divided`."""
  divide = bind(
    PARTITIONS, {'partition': name, **fields}, 'data', key='partition'
  )
  return divided(
    divide,
    examples,
    workers,
    batch_size,
    seed,
    labels=labels,
    contiguous=contiguous,
  )
