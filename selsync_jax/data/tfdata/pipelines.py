"""The data partitioners as tf.data pipelines.

`assignment.py` computes, with NumPy and for many steps at a time, which worker
reads which example. A pipeline starts from such a block of indices, whatever
the partition (`seldp`, `defdp`, `by_label`, `dirichlet`):

  indices -> gather -> cast -> transform and augment -> batch -> prefetch

A data set that stays on disk has such a pipeline for each worker: see
`streamed.py`.

No pipeline calls Python: a process that ends while a thread of TensorFlow waits
for Python's lock would hang.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
import itertools
import os
from typing import Any, TypeVar

import tensorflow as tf

from selsync_jax.data import arrays, protocol
from selsync_jax.data.protocol import Batch

_T = TypeVar('_T')


def read(
  examples: protocol.Examples,
  dtypes: Mapping[str, type],
  blocks: Iterator[arrays.Block],
  transform: protocol.KeyedTransform,
) -> Iterator[Batch]:
  """Reads with tf.data pipelines, one per block; see `arrays.Read`."""
  first = next(blocks, None)
  if first is None:
    return iter(())
  tensors = {name: tf.constant(array) for name, array in examples.items()}

  def batch(slots: dict[str, Any]) -> dict[str, Any]:
    """Returns the batches of all workers at a step."""
    lead, key = slots['index'].shape, slots.get('key')
    index = tf.reshape(slots['index'], [-1])
    flat = {
      name: tf.cast(tf.gather(tensor, index), dtypes.get(name, tensor.dtype))
      for name, tensor in tensors.items()
    }
    flat = transform(flat, None if key is None else tf.reshape(key, [-1]))
    batch = {k: tf.reshape(v, lead + v.shape[1:]) for k, v in flat.items()}
    return batch | {'mask': slots['mask']}

  # Autotuning would start a thread for every block, and about once in some
  # thousand blocks TensorFlow waits forever for that thread to end.
  untuned = tf.data.Options()
  untuned.autotune.enabled = False

  def pipeline(block: dict[str, Any]) -> tf.data.Dataset:
    steps = tf.data.Dataset.from_tensor_slices(block)
    batches = steps.map(batch, num_parallel_calls=os.cpu_count())
    return batches.prefetch(2).with_options(untuned)

  opened = traced(pipeline, first)
  return read_ahead(opened, itertools.chain([first], blocks))


def traced(
  pipeline: Callable[[Any], tf.data.Dataset], block: arrays.Block
) -> Callable[[arrays.Block], tf.data.Dataset]:
  """Returns the pipeline of any block; its Python runs once, for this block."""
  spec = {}

  @tf.autograph.experimental.do_not_convert  # It has nothing to convert.
  def variant(block):
    dataset = pipeline(block)
    spec.update(dataset.element_spec)
    return tf.data.experimental.to_variant(dataset)

  blocks = {
    name: tf.TensorSpec((None, *array.shape[1:]), array.dtype)
    for name, array in block.items()
  }
  compiled = tf.function(variant).get_concrete_function(blocks)

  def of(block: arrays.Block) -> tf.data.Dataset:
    tensors = {name: tf.constant(array) for name, array in block.items()}
    return tf.data.experimental.from_variant(compiled(tensors), spec)

  return of


def read_ahead(
  pipeline: Callable[[_T], tf.data.Dataset], parts: Iterator[_T]
) -> Iterator[Batch]:
  """Yields the batches of each part's pipeline; a thread opens the next."""

  def opened():
    for part in parts:
      batches = pipeline(part).as_numpy_iterator()
      return itertools.chain([next(batches)], batches)
    return None

  with futures.ThreadPoolExecutor(1) as pool:
    after = pool.submit(opened)
    while batches := after.result():
      after = pool.submit(opened)
      yield from batches
