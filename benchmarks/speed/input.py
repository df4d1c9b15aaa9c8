"""Can the input pipelines keep up? Samples per second, next to the step's.

  python -m benchmarks.speed.input

Each pipeline runs in its own process and reads for four workers with batches of
32. For comparison, the training step of the default run is timed on a batch in
memory, which is the most that it can consume. CIFAR's pixels, WikiText's words,
and ImageNet's photographs are random data of the real shapes; the digits and
the standard library's text are real. Grain reads the same digits one by one. It
also reads photographs that Pillow decodes, crops in the middle and resizes,
like tf.data in an evaluation of ImageNet. Prints one table and writes one JSON
file. Takes three minutes on 2 cores.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import dataclasses
import io
import multiprocessing
import pathlib
import resource
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks.table import report, Table

WORKERS, BATCH, START, STEPS = 4, 32, 10**5, 10**6


def pipeline_of(
  name: str,
  arrays: dict[str, np.ndarray] | None = None,
  data_dir: str | None = None,
  backend: str = 'tf',
  **fields: Any,
) -> Iterator[Any]:
  """Training batches of a data set: from `arrays`, or from disk."""
  import tensorflow_datasets as tfds

  from selsync_jax.configs import base
  from selsync_jax.data import bind_data, open_dataset
  from selsync_jax.data.sources import DATASETS
  from selsync_jax.data.tfdata import pipelines

  if arrays is None:
    config = base.get_config('bsp').data
    config.update({'name': name, 'dir': data_dir, 'backend': backend} | fields)
    return batches_of(open_dataset(bind_data(config.to_dict())))
  with tfds.testing.mock_data(num_examples=2):
    dataset = DATASETS[name](**fields)
  splits = {'train': arrays}
  dataset = dataclasses.replace(dataset, splits=splits, read=pipelines.read)
  return batches_of(dataset)


def batches_of(dataset: Any) -> Iterator[Any]:
  """Training batches of an open data set."""
  from selsync_jax.data import Data
  from selsync_jax.data.assignment import Assignment
  from tests.support.partitions import make_partition

  partition = make_partition(
    'seldp',
    dataset.sizes['train'],
    WORKERS,
    BATCH,
    seed=0,
    contiguous=dataset.order.contiguous,
  )
  data = Data(dataset, Assignment(partition, dataset.order, None, BATCH, 0))
  return data.batches(range(WORKERS), START, STEPS)


def cifar(name: str, labels: int) -> Iterator[Any]:
  """45,000 images."""
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (45_000, 32, 32, 3), np.uint8)
  label = rng.integers(0, labels, 45_000, np.int32)
  return pipeline_of(name, {'image': image, 'label': label})


def wikitext() -> Iterator[Any]:
  """103 million words in segments of 35."""
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, 267_735, (2_949_000, 36), np.int32)
  # The bytes of stdlib_text are read like words.
  return pipeline_of('stdlib_text', {'tokens': tokens}, bptt=35)


def imagenet() -> Iterator[Any]:
  """1,024 JPEGs of 500x375 pixels, 100 kB each, from disk."""
  from tests.support import photographs

  rng = np.random.default_rng(0)
  pictures = [photographs.jpeg(rng, 375, 500) for _ in range(8)]
  with tempfile.TemporaryDirectory() as root:
    photographs.prepare(
      pathlib.Path(root),
      lambda: pictures[rng.integers(8)],
      labels=64,
      each=16,
      validation=8,
      shards=8,
    )
    yield from pipeline_of('imagenet2012', data_dir=root)


def by_grain(
  read: Callable[[Any], dict[str, Any]], stored: Sequence[Any], **options: Any
) -> Iterator[Any]:
  """Training batches that Grain reads, from stored examples."""
  import grain

  from selsync_jax.data import from_grain

  split = grain.MapDataset.source(stored).map(read)
  splits = {'train': split, 'validation': split, 'test': split}
  options = {'task': 'classification', 'num_classes': 64} | options
  return batches_of(from_grain(**splits, **options))


def digits_by_grain() -> Iterator[Any]:
  """The digits, from memory."""
  import grain

  from selsync_jax.data.sources import DATASETS

  digits = DATASETS['digits']()
  train = digits.splits['train']
  rows = [
    dict(zip(train, row, strict=True))
    for row in zip(*train.values(), strict=True)
  ]
  options = grain.ReadOptions(num_threads=0)
  return by_grain(dict, rows, transform=digits.transform, read_options=options)


def decoded(jpeg: bytes) -> dict[str, Any]:
  """The square in the middle of a picture, resized."""
  from PIL import Image

  with Image.open(io.BytesIO(jpeg)) as picture:
    (width, height), side = picture.size, min(picture.size) * 7 // 8
    left, top = (width - side) // 2, (height - side) // 2
    box = (left, top, left + side, top + side)
    small = picture.resize((224, 224), Image.Resampling.BILINEAR, box)
  return {'image': np.asarray(small), 'label': 0}


def scaled(batch: dict[str, Any]) -> dict[str, Any]:
  return batch | {'image': batch['image'] / np.float32(127.5) - 1}


def photographs_by_grain() -> Iterator[Any]:
  """1,024 JPEGs like the ones in `imagenet`, from memory."""
  from tests.support import photographs

  rng = np.random.default_rng(0)
  pictures = [photographs.jpeg(rng, 375, 500) for _ in range(8)]
  return by_grain(decoded, pictures * 128, transform=scaled)


def step() -> Iterator[Any]:
  """The training step of the default run, always on the same batch."""
  import jax

  from selsync_jax.configs import digits
  from selsync_jax.devices import backend
  from selsync_jax.training.settings import check
  from selsync_jax.training.setup import create_setup

  backend.make_devices(WORKERS)
  config = digits.get_config()
  job = create_setup(check(config))
  batch = next(job.problem.data.batches(range(WORKERS), 0, 1))
  state = job.initial()
  train = job.train_step()
  while True:
    state, metrics = jax.block_until_ready(train(state, batch))
    del metrics
    yield batch


ROWS: dict[str, Callable[[], Iterator[Any]]] = {
  'digits': lambda: pipeline_of('digits'),
  'digits, numpy': lambda: pipeline_of('digits', backend='numpy'),
  'digits, grain': digits_by_grain,
  'digits, 32x32': lambda: pipeline_of('digits', image_size=32),
  'cifar10': lambda: cifar('cifar10', 10),
  'cifar100': lambda: cifar('cifar100', 100),
  'stdlib_text, bptt 256': lambda: pipeline_of('stdlib_text', bptt=256),
  'stdlib_text, bptt 256, numpy': lambda: pipeline_of(
    'stdlib_text', backend='numpy', bptt=256
  ),
  'wikitext103, bptt 35': wikitext,
  'imagenet2012, streamed': imagenet,
  'photographs, grain': photographs_by_grain,
  'the step on digits': step,
}
STEP = 'the step on digits'


def measure(row: str, seconds: float, repeats: int) -> dict[str, float]:
  """Samples per second (best of several), first batch, and peak memory."""
  batches = ROWS[row]()
  began = time.perf_counter()
  next(batches)
  first = time.perf_counter() - began
  for _ in range(10):
    next(batches)
  best = 0.0
  for _ in range(repeats):
    samples, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
      samples += int(next(batches)['mask'].sum())
    best = max(best, samples / elapsed)
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return {
    'samples_per_second': best,
    'first_seconds': first,
    'peak_bytes': peak * 1024,
  }


def table(rows: dict[str, dict[str, float]]) -> Table:
  first, step = f'first batch, at step {START:,}', rows[STEP]
  return Table(
    ('pipeline', 'samples/s', 'relative to the step', first, 'peak memory'),
    [
      [
        name,
        f'{row["samples_per_second"]:,.0f}',
        f'{row["samples_per_second"] / step["samples_per_second"]:.1f}x',
        f'{row["first_seconds"]:.2f} s',
        f'{row["peak_bytes"] / 1e9:.2f} GB',
      ]
      for name, row in rows.items()
    ],
  )


def main() -> None:
  """Measures each row in its own process; prints and writes the results."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('pipelines', nargs='*', help='default: all')
  parser.add_argument('--seconds', type=float, default=2.0, help='per repeat')
  parser.add_argument('--repeats', type=int, default=5, help='the best counts')
  parser.add_argument('--out', type=pathlib.Path, default='input.json')
  flags = parser.parse_args()
  spawn = multiprocessing.get_context('spawn')
  rows = {}
  for row in (*flags.pipelines, STEP) if flags.pipelines else ROWS:
    with futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
      rows[row] = process.submit(
        measure, row, flags.seconds, flags.repeats
      ).result()
  report(flags.out, rows, table(rows))


if __name__ == '__main__':
  main()
