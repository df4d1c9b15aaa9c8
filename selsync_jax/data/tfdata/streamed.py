"""Data that stay on disk, such as ImageNet: a tf.data pipeline per worker.

A worker's chunk is a contiguous part of the shards. It is read from front to
back and shuffled within blocks of still-encoded examples, which need little
memory. Only examples that are used are decoded.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from selsync_jax.config import config_errors, ConfigError
from selsync_jax.data import arrays, partitions, protocol
from selsync_jax.data.assignment import Assignment, progress
from selsync_jax.data.draws import bits
from selsync_jax.data.index_shuffle import IndexShuffle
from selsync_jax.data.order import ChunkProgress, Shuffled
from selsync_jax.data.tfdata import pipelines, prepared


class Shards(NamedTuple):
  """A split on disk: a contiguous part of one of TFDS's splits."""

  builder: Any  # The TFDS builder.
  split: str  # The name of TFDS's split.
  first: int  # The first example's index in TFDS's split.
  examples: int  # The number of examples.

  def read(self, start: int, stop: int) -> tf.data.Dataset:
    """Returns examples `start` to `stop - 1`, with encoded images."""
    part = f'{self.split}[{self.first + start}:{self.first + stop}]'
    decoders = {'image': tfds.decode.SkipDecoding()}
    return prepared.rows(self.builder, part, decoders=decoders).take(
      stop - start
    )

  def batches(
    self,
    decode: protocol.KeyedTransform,
    assignment: Assignment,
    workers: Sequence[int],
    start: int,
    stop: int,
  ) -> Iterator[protocol.Batch]:
    """Yields the batches of an assignment, at steps `start` to `stop - 1`.

    `decode(example, key)` turns a stored example, and 64 random bits as uint64,
    into an example of a batch. The assignment's order has blocks.
    """
    steps = assignment.partition.steps_per_chunk(assignment.batch_size)

    def stacked(*batches):
      return {k: tf.stack([b[k] for b in batches]) for k in batches[0]}

    def pipeline(span):
      each = [
        self._worker_batches(decode, assignment, worker, *span)
        for worker in workers
      ]
      return tf.data.Dataset.zip(*each).map(stacked).prefetch(2)

    spans = _spans(steps[list(workers)], start, stop)
    return pipelines.read_ahead(pipeline, spans)

  def _worker_batches(
    self,
    decode: protocol.KeyedTransform,
    assignment: Assignment,
    worker: int,
    start: int,
    stop: int,
  ) -> tf.data.Dataset:
    """Returns the batches of one worker at some steps of one epoch."""
    partition, order, _, batch_size, seed = assignment
    assert isinstance(order, Shuffled)
    assert order.block_size
    size = order.block_size
    slots = assignment.slots([worker], np.arange(start, stop), IndexShuffle())
    index = slots.index[slots.mask]  # In the order in which they are read.
    reached = progress(partition, batch_size, np.array(worker), np.array(start))
    chunk = ChunkProgress(*map(int, reached))
    place = index - chunk.start
    # A block is read whole; examples that earlier steps used are skipped.
    first, _ = chunk.even_share
    used = first % size
    end = int(place[-1]) // size * size + size
    files = self.read(
      chunk.start + first - used, chunk.start + min(end, chunk.size)
    )
    each = {
      'source': place % size,
      'step': np.nonzero(slots.mask)[0],
      'key': bits(seed, slots.epoch, slots.index)[slots.mask],
    }
    each = {name: np.pad(array, (used, 0)) for name, array in each.items()}
    counts = slots.mask.sum(axis=(1, 2))

    def shuffled(slots, files):
      files = {k: tf.gather(v, slots['source']) for k, v in files.items()}
      return slots['step'], slots['key'], files

    def decoded(step, key, files):
      return step, decode(files, key)

    def filled(_, examples):
      slots, size = tf.range(batch_size), tf.size(examples['label'])
      slot = tf.where(slots < size, slots, 0)
      batch = {k: tf.gather(v, slot) for k, v in examples.items()}
      return batch | {'mask': slots < size}

    blocks = tf.data.Dataset.from_tensor_slices(each).batch(size)
    return (
      tf.data.Dataset.zip(blocks, files.batch(size).prefetch(1))
      .map(shuffled)
      .unbatch()
      .skip(used)
      .map(decoded, num_parallel_calls=tf.data.AUTOTUNE)
      .group_by_window(
        lambda step, _: step,
        lambda _, group: group.batch(batch_size),
        window_size_func=lambda step: tf.gather(counts, step),
      )
      .map(filled)
    )


def shards(builder: Any, split: str) -> Shards:
  """Returns a split on disk, from TFDS's name for it."""
  splits = builder.info.splits
  instruction = tfds.core.ReadInstruction.from_spec(split)
  (part,) = instruction.to_absolute(splits)
  first, last = part.from_ or 0, part.to or splits[part.splitname].num_examples
  return Shards(builder, part.splitname, first, last - first)


class StreamedDataset(protocol.Dataset):
  """A data set whose splits, each a `Shards`, stay on disk.

  `transform` and `train` take one example at a time.
  """

  def size(self, split):
    return self.splits[split].examples

  def training(self, assignment, workers, start, stop):
    split, decode = self.splits['train'], self.train
    return split.batches(decode, assignment, workers, start, stop)

  def evaluation(self, split, batch_size, workers, total):
    """See `Dataset`; each worker reads a contiguous part of the split."""
    parts = self._parts(split, batch_size, total)
    steps = int(parts.partition.steps_per_chunk(batch_size)[0])
    decode = arrays.without_key(self.transform)
    return self.splits[split].batches(decode, parts, workers, 0, steps)

  def check(self, assignment, eval_batch_size):
    """See `Dataset`; every worker must get an example at every step."""
    _check(assignment)
    workers = len(assignment.partition.sizes)
    for split in ('validation', 'test'):
      with config_errors(f'data: {split}'):
        _check(self._parts(split, eval_batch_size, workers))

  def _parts(self, split: str, batch_size: int, total: int) -> Assignment:
    """Assigns each worker a contiguous part of a split, for evaluation."""
    partition = partitions.divided(
      partitions.seldp, self.size(split), total, 1, 0, contiguous=True
    )
    return Assignment(partition, Shuffled(1), None, batch_size, 0)

  def mark(self, split):
    """See `Dataset`; reads four examples, with encoded images."""
    stored, content = self.splits[split], ''
    for index in arrays.sample(stored.examples, 4).tolist():
      (row,) = stored.read(index, index + 1).as_numpy_iterator()
      content += arrays.checksum({k: np.asarray(v) for k, v in row.items()})
    return {'content': content}


def _check(assignment: Assignment) -> None:
  """Raises `ConfigError` if a worker would lack an example at a step."""
  partition, _, _, batch_size, _ = assignment
  if (partition.steps_per_chunk(batch_size) > partition.sizes).any():
    raise ConfigError(
      f'a batch of {batch_size}: must be larger for streamed data that '
      'the workers cannot share evenly (config.batch_size, '
      'config.eval.batch_size)'
    )


def _spans(steps_per_chunk, start, stop):
  """Yields spans of steps in which no worker ends an epoch."""
  while start < stop:
    ends = (start // steps_per_chunk + 1) * steps_per_chunk
    end = min(stop, *ends.tolist())
    yield start, end
    start = end
