"""Reads examples on disk in the order of their shards.

A worker's chunk is a contiguous part of the shards. It is read from front to
back and shuffled within blocks of still-encoded examples, so that a block needs
little memory. Only examples that are used are decoded: not the part of a block
that a resumed run has read before, either.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import itertools
from typing import NamedTuple

import tensorflow as tf

from selsync_jax.config import ConfigError
from selsync_jax.data.array_ops import numpy_ops
from selsync_jax.data.assignment import progress
from selsync_jax.data.order import ChunkProgress
from selsync_jax.data.order import ShuffledBlocks
from selsync_jax.data.partition import Partition
from selsync_jax.data.protocol import Batch
from selsync_jax.data.tfdata.array_ops import bits
from selsync_jax.data.tfdata.array_ops import TENSOR_OPS
from selsync_jax.data.tfdata.shards import Shards
from selsync_jax.data.tfdata.source import Tensors


class Reader(NamedTuple):
  """Reads a split for some of the workers.

  Attributes:
    shards: the split.
    decode: `decode(example, key)`, from a stored example to one of a batch;
      `key` is uint64, 64 random bits.
    partition: of the split's examples.
    order: within the chunks.
    batch_size: slots of a worker's batch.
    seed: of the shuffle and of the keys.
  """

  shards: Shards
  decode: Callable[[Tensors, tf.Tensor], Tensors]
  partition: Partition
  order: ShuffledBlocks
  batch_size: int
  seed: int

  def batches(
    self, workers: Sequence[int], start: int, stop: int
  ) -> Iterator[Batch]:
    """The batches of some workers at steps `start` to `stop - 1`.

    They hold what `Assignment.slots` says: arrays [workers, batch_size, ...],
    and `mask`.

    Raises:
      ConfigError: if a worker would have no example at some step.
    """
    steps = self.partition.steps_per_chunk(self.batch_size)
    if (steps > self.partition.sizes).any():
      raise ConfigError(
        f'a batch of {self.batch_size}: must be larger for streamed data that '
        'the workers cannot share evenly (config.batch_size, '
        'config.eval.batch_size)'
      )

    def open_span(start, stop):
      each = [self._worker_batches(worker, start, stop) for worker in workers]

      def stacked(*batches):
        return {k: tf.stack([b[k] for b in batches]) for k in batches[0]}

      return (
        tf.data.Dataset.zip(*each).map(stacked).prefetch(2).as_numpy_iterator()
      )

    return _read_ahead(_spans(steps[list(workers)], start, stop), open_span)

  def _progress(self, worker: int, step: int) -> ChunkProgress:
    """How far a worker has read its chunk: whole numbers."""
    fields = progress(
      self.partition, self.batch_size, worker, step, numpy_ops()
    )
    return ChunkProgress(*map(int, fields))

  def _examples(self, worker: int, start: int, stop: int) -> tf.data.Dataset:
    """What a worker reads at some steps of one epoch, decoded, one by one.

    Each element is the number of steps after `start`, and an example.
    """
    chunk = self._progress(worker, start)
    after = chunk._replace(step=chunk.step + stop - start)
    (first, _), (end, _) = chunk.even_share, after.even_share
    size = self.order.block_size
    low, high = first // size * size, -(-end // size) * size
    files = self.shards.read(
      chunk.start + low, chunk.start + min(high, chunk.size)
    )

    def shuffled(block, files):
      begin = low + block * size
      position = begin + tf.range(tf.size(files['label']), dtype=tf.int64)
      source = self.order.shuffled(position, chunk, self.seed, TENSOR_OPS)
      files = {k: tf.gather(v, source - begin) for k, v in files.items()}
      return tf.data.Dataset.from_tensor_slices(
        (position, chunk.start + source, files)
      )

    def decoded(position, index, files):
      example = self.decode(files, bits(self.seed, chunk.epoch, index))
      step = ((position + 1) * chunk.steps - 1) // chunk.size
      return step - chunk.step, example

    blocks = files.batch(size).prefetch(1).enumerate()
    return (
      blocks.flat_map(shuffled)
      .skip(first - low)
      .take(end - first)
      .map(decoded, num_parallel_calls=tf.data.AUTOTUNE)
    )

  def _worker_batches(
    self, worker: int, start: int, stop: int
  ) -> tf.data.Dataset:
    """The batches of one worker at some steps of one epoch."""
    chunk = self._progress(worker, start)
    slots = tf.range(self.batch_size)

    def count(step):
      first, end = chunk._replace(step=chunk.step + step).even_share
      return end - first

    def filled(_, examples):
      size = tf.size(examples['label'])
      slot = tf.where(slots < size, slots, 0)
      batch = {k: tf.gather(v, slot) for k, v in examples.items()}
      return batch | {'mask': slots < size}

    return (
      self._examples(worker, start, stop)
      .group_by_window(
        lambda step, _: step,
        lambda _, group: group.batch(self.batch_size),
        window_size_func=count,
      )
      .map(filled)
    )


def _spans(steps_per_chunk, start, stop):
  """Spans of steps in which no worker ends an epoch."""
  while start < stop:
    ends = (start // steps_per_chunk + 1) * steps_per_chunk
    end = min(stop, *ends.tolist())
    yield start, end
    start = end


def _read_ahead(spans, open_span):
  """Yields the batches of all spans; opens each while the last one is read."""

  def first(span):
    iterator = open_span(*span)
    return [next(iterator)], iterator

  with futures.ThreadPoolExecutor(1) as pool:
    opened = None
    for span in itertools.chain(spans, [None]):
      after = pool.submit(first, span) if span else None
      for part in opened.result() if opened else ():
        yield from part
      opened = after
