"""Who reads which example at which step, as tf.data pipelines over indices.

A partition cuts a data set into one chunk a worker. Everything is a pure
function of (seed, step): the batches from step k on are those that a run from
step 0 would see, at no cost for the steps in between, and every process can
tell what every worker reads.

The examples of a chunk are dealt over the fewest steps that hold them, as
evenly as whole numbers allow: a short batch at the end of every chunk would be
a noisy gradient at a fixed beat, which is just what SelSync's trigger listens
for. The slots that stay empty are marked by the mask.

References:
  Tyagi and Swany, CLUSTER 2023, section `Data partitioning` (DefDP, SelDP).
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Int64
import numpy as np
import tensorflow as tf

from selsync_jax.config import pick


class Partition(NamedTuple):
  """A data set cut into chunks.

  Attributes:
    order: int64 [examples], example numbers, chunk after chunk.
    bounds: int64 [workers + 1], where each chunk begins in `order` and ends.
    rotates: whether worker w reads chunk (w + epoch) mod N in an epoch, or
      its own for ever.
  """

  order: Int64[np.ndarray, 'examples']
  bounds: Int64[np.ndarray, 'workers+1']
  rotates: bool

  @property
  def sizes(self) -> Int64[np.ndarray, 'workers']:
    """Examples of each chunk."""
    return np.diff(self.bounds)


def _equal(examples: int, workers: int, seed: int, rotates: bool) -> Partition:
  order = np.random.default_rng(seed).permutation(examples)
  return Partition(order, np.arange(workers + 1) * examples // workers, rotates)


def defdp(examples: int, workers: int, seed: int) -> Partition:
  """Default partitioning: each worker keeps its own chunk of the data."""
  return _equal(examples, workers, seed, rotates=False)


def seldp(examples: int, workers: int, seed: int) -> Partition:
  """SelSync's partitioning: the chunks go round.

  In every epoch each worker reads another chunk, no two the same; a pass of N
  epochs shows each worker every example exactly once.
  """
  return _equal(examples, workers, seed, rotates=True)


PARTITIONS = {'defdp': defdp, 'seldp': seldp}


def create(
  name: str, examples: int, workers: int, batch_size: int, seed: int
) -> Partition:
  """The partition `name`, if every worker can fill a batch from it.

  Raises:
    ValueError: if the name is unknown, or a chunk is smaller than a batch.
  """
  make = pick(PARTITIONS, name)
  if workers > examples:
    raise ValueError(
      f'{workers} workers are more than the {examples} examples to share'
    )
  partition = make(examples, workers, seed)
  if partition.sizes.min() < batch_size:
    raise ValueError(
      f'a batch of {batch_size} is larger than a partition: the smallest '
      f'of {workers} has {partition.sizes.min()} examples'
    )
  return partition


def steps_per_epoch(partition: Partition, batch_size: int) -> int:
  """Steps in which the workers together read as much as one data set."""
  workers = len(partition.sizes)
  return _steps(_steps(len(partition.order), workers), batch_size)


def _steps(examples, batch_size):
  return -(-examples // batch_size)


def batches(
  partition: Partition,
  batch_size: int,
  seed: int,
  workers: Sequence[int],
  start: int,
  stop: int,
) -> tf.data.Dataset:
  """The batches of some workers at steps `start` to `stop - 1`.

  In each epoch a chunk is shuffled anew, for all its readers alike.

  Args:
    partition: of the whole data set over all workers.
    batch_size: slots of one worker's batch.
    seed: of the shuffles.
    workers: the numbers of the workers wanted.
    start: the first step.
    stop: the step after the last.

  Returns:
    A data set of dicts, each one step: `index`, int64 [workers, batch_size],
    valid example numbers in every slot; `mask`, bool of the same shape, the
    slots that count; `epoch`, int64 [workers].
  """
  numbers = len(partition.sizes)
  sizes = tf.constant(partition.sizes)
  order = tf.constant(partition.order)
  bounds = tf.constant(partition.bounds)
  worker = tf.constant(workers, tf.int64)
  steps = _steps(partition.sizes, batch_size)
  if partition.rotates:  # All change chunks at once, never to a taken one.
    steps = np.full_like(steps, steps.max())
  steps = tf.gather(tf.constant(steps), worker)

  def batch(step):
    epoch, turn = step // steps, step % steps
    chunk = (worker + epoch) % numbers if partition.rotates else worker
    size = tf.gather(sizes, chunk)
    first, last = turn * size // steps, (turn + 1) * size // steps
    slot = first[:, None] + tf.range(batch_size, dtype=tf.int64)
    mask = slot < last[:, None]
    size = tf.repeat(size, batch_size)
    seeds = tf.stack([seed * tf.ones_like(chunk), epoch, chunk], axis=1)
    # The raw op: TensorFlow 2.21's `index_shuffle` pads seeds by the row.
    shuffled = tf.raw_ops.RandomIndexShuffle(
      index=tf.reshape(slot, [-1]) % size,
      seed=tf.repeat(seeds, batch_size, axis=0),
      max_index=size - 1,
    )
    place = tf.repeat(tf.gather(bounds, chunk), batch_size) + shuffled
    index = tf.reshape(tf.gather(order, place), tf.shape(slot))
    return {'index': index, 'mask': mask, 'epoch': epoch}

  return tf.data.Dataset.range(start, stop).map(batch)
