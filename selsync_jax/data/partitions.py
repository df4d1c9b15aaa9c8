"""The partitions, which divide a data set into one chunk per worker.

A partition is one function here and one row of `PARTITIONS`; its keyword-only
parameters are fields of `config.data`. `order.py` defines the order within a
chunk, and `tfdata/pipelines.py` reads every partition as a tf.data pipeline.

References:
  Tyagi and Swany, CLUSTER 2023, section `Data partitioning` (DefDP, SelDP) and
    section `Data injection` (a fixed number of labels per worker).
  Hsu, Qi and Brown, `Measuring the Effects of Non-Identical Data
    Distribution for Federated Visual Classification`, 2019 (Dirichlet).
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

from annotated_types import Interval
from jaxtyping import Int64, Integer
import numpy as np

from selsync_jax.config import Count


class Partition(NamedTuple):
  """A data set divided into chunks, one per worker."""

  indices: Int64[np.ndarray, 'examples']  # Example indices, chunk after chunk.
  bounds: Int64[np.ndarray, 'workers+1']  # Where chunks begin in it, and end.
  rotates: bool = False  # Whether worker w reads chunk (w + epoch) mod N.

  @property
  def sizes(self) -> Int64[np.ndarray, 'workers']:
    """The number of examples in each chunk."""
    return np.diff(self.bounds)

  @property
  def chunks(self) -> list[Int64[np.ndarray, '_']]:
    """The example indices of each chunk."""
    return np.split(self.indices, self.bounds[1:-1])

  def steps_per_chunk(self, batch_size: int) -> Int64[np.ndarray, 'workers']:
    """Returns the steps in which each worker reads a chunk."""
    steps = _ceil_divide(self.sizes, batch_size)
    if self.rotates:  # All workers change chunks at the same step.
      steps = np.full_like(steps, steps.max())
    return steps

  def steps_per_epoch(self, batch_size: int) -> int:
    """Returns the steps in which all workers read as much as the data set."""
    share = _ceil_divide(len(self.indices), len(self.sizes))
    return _ceil_divide(share, batch_size)


def _ceil_divide(count, divisor):
  return -(-count // divisor)


class Divisible(NamedTuple):
  """The input of a partition."""

  indices: Int64[np.ndarray, 'examples']  # In the order to be divided.
  labels: Integer[np.ndarray, 'examples'] | None  # If they are in memory.
  rng: np.random.Generator  # For partitions that draw.


def even_bounds(count: int, parts: int) -> Int64[np.ndarray, 'bounds']:
  """Returns bounds of parts of [0, count), whose sizes differ by at most 1."""
  return np.arange(parts + 1) * count // parts


def defdp(examples: Divisible, workers: int) -> Partition:
  """Gives each worker its own chunk: the default partitioning."""
  bounds = even_bounds(len(examples.indices), workers)
  return Partition(examples.indices, bounds)


def seldp(examples: Divisible, workers: int) -> Partition:
  """Rotates the chunks among the workers: SelSync's partitioning.

  In every epoch each worker reads a new chunk, and no two workers read the same
  chunk. In N epochs each worker reads every example once.
  """
  return defdp(examples, workers)._replace(rotates=True)


def _group(examples: Divisible) -> tuple[np.ndarray, np.ndarray]:
  """Returns example indices label by label, and the count of each label."""
  if examples.labels is None:
    raise ValueError(
      'a partition by label needs labels in memory, but this data set has none'
    )
  labels = examples.labels[examples.indices]
  indices = examples.indices[np.argsort(labels, kind='stable')]
  return indices, np.unique(labels, return_counts=True)[1]


def _assign(
  indices: Int64[np.ndarray, 'examples'],
  counts: Int64[np.ndarray, 'workers labels'],
) -> Partition:
  """Gives worker w `counts[w, l]` examples of label l."""
  workers, labels = counts.shape
  owner = np.repeat(np.tile(np.arange(workers), labels), counts.T.ravel())
  bounds = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
  return Partition(indices[np.argsort(owner, kind='stable')], bounds)


def by_label(
  examples: Divisible, workers: int, *, labels_per_worker: Count
) -> Partition:
  """Gives each worker a fixed number of labels: the paper's non-IID data.

  Labels are assigned round-robin. Workers with a common label split its
  examples evenly.
  """
  indices, sizes = _group(examples)
  labels = len(sizes)
  if not 1 <= labels_per_worker <= labels:
    raise ValueError(
      f'labels_per_worker must be in [1, {labels}], got {labels_per_worker}'
    )
  if workers * labels_per_worker < labels:
    raise ValueError(
      f'{workers} workers of labels_per_worker={labels_per_worker} cover fewer '
      f'than the {labels} labels'
    )
  slots = np.arange(workers * labels_per_worker)
  counts = np.zeros((workers, labels), int)
  for label, size in enumerate(sizes.tolist()):
    owners = slots[slots % labels == label] // labels_per_worker
    counts[owners, label] = np.diff(even_bounds(size, len(owners)))
  if (np.count_nonzero(counts, axis=1) < labels_per_worker).any():
    raise ValueError(f'a label has too few examples for {workers} workers')
  return _assign(indices, counts)


def _draw(rng, size, concentration, left):
  """Draws `size` labels of a random mix, at most `left` of each label."""
  mix = rng.dirichlet(concentration)
  taken = np.zeros_like(left)
  while taken.sum() < size:
    available = taken < left
    weights = np.where(available, mix, 0.0)
    if not weights.sum():  # No label of this mix is left: draw another mix.
      weights[available] = rng.dirichlet(concentration[available])
    more = rng.multinomial(size - taken.sum(), weights / weights.sum())
    taken = np.minimum(taken + more, left)
  return taken


def dirichlet(
  examples: Divisible,
  workers: int,
  *,
  dirichlet_alpha: Annotated[float, Interval(gt=0, le=1e6)],
) -> Partition:
  """Gives workers chunks of equal size with random label mixes (Hsu et al.).

  Every worker's mix is drawn from Dirichlet(alpha p), where p is the share of
  each label in the data set. With alpha near 0 a worker has one label; with a
  large alpha all workers have the same mix. Workers draw in turn, without
  replacement.
  """
  indices, left = _group(examples)
  prior = left / left.sum()
  counts = []
  for size in np.diff(even_bounds(len(indices), workers)):
    counts.append(_draw(examples.rng, size, dirichlet_alpha * prior, left))
    left = left - counts[-1]
  return _assign(indices, np.stack(counts))


PARTITIONS = {f.__name__: f for f in (defdp, seldp, by_label, dirichlet)}


def divided(
  divide: Callable[[Divisible, int], Partition],
  examples: int,
  workers: int,
  batch_size: int,
  seed: int,
  *,
  labels: Integer[np.ndarray, 'examples'] | None = None,
  contiguous: bool = False,
) -> Partition:
  """Returns a partition in which every worker can fill a batch.

  Chunks are random, unless text or data on disk needs them contiguous.
  """
  if workers > examples:
    raise ValueError(f'more workers ({workers}) than examples ({examples})')
  rng = np.random.default_rng(seed)
  indices = np.arange(examples) if contiguous else rng.permutation(examples)
  partition = divide(Divisible(indices, labels, rng), workers)
  if partition.sizes.min() < batch_size:
    raise ValueError(
      f'a batch of {batch_size} is larger than a chunk: the smallest '
      f'of {workers} has {partition.sizes.min()} examples'
    )
  return partition
