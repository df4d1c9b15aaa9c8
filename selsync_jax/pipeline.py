"""From a data set and its partition to batches for all local workers."""

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from selsync_jax import partition as partition_lib
from selsync_jax.datasets import Examples

Batch = dict[str, np.ndarray]


def _gather(examples: Examples, plan: tf.data.Dataset) -> Iterator[Batch]:
  tensors = {name: tf.constant(array) for name, array in examples.items()}

  def assemble(plan):
    batch = {k: tf.gather(v, plan['index']) for k, v in tensors.items()}
    return batch | {'mask': plan['mask']}

  return plan.map(assemble).prefetch(2).as_numpy_iterator()


def train_batches(
  examples: Examples,
  partition: partition_lib.Partition,
  batch_size: int,
  seed: int,
  workers: Sequence[int],
  start: int,
  stop: int,
) -> Iterator[Batch]:
  """Training batches at steps `start` to `stop - 1`, arrays [workers, batch].

  See `partition.batches`; the examples are gathered for all workers at once.
  """
  return _gather(
    examples,
    partition_lib.batches(partition, batch_size, seed, workers, start, stop),
  )


def eval_batches(
  examples: Examples, batch_size: int, workers: Sequence[int], total: int
) -> Iterator[Batch]:
  """Every example once over `total` workers, arrays [workers, batch, ...].

  The last batch is filled up; its mask tells.
  """
  count = len(next(iter(examples.values())))
  slots = np.asarray(workers)[:, None] * batch_size + np.arange(batch_size)
  slots = tf.constant(slots, tf.int64)

  def batch(step):
    index = step * total * batch_size + slots
    return {'index': tf.minimum(index, count - 1), 'mask': index < count}

  steps = -(-count // (total * batch_size))
  return _gather(examples, tf.data.Dataset.range(steps).map(batch))
