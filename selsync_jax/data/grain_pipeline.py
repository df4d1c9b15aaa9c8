"""Batches that Grain makes, in threads and in processes.

`assignment.py` computes which worker reads which example, as for every data
set. An element of Grain's pipeline is the batch of a step, for all workers of
this process. So threads and processes work on different steps, their number
changes no batch, and a resumed run reads nothing of the steps before.
"""

from collections.abc import Callable, Iterator
import errno
import functools
import gc
import multiprocessing
import os
import signal
import sys
import threading
from typing import Any

import numpy as np

from selsync_jax.config import RunError
from selsync_jax.data import arrays, protocol
from selsync_jax.data.assignment import Schedule

_BLOCK, _BLOCKS = 64, 8  # Steps in a block, and blocks in the cache.


def read(
  batch: Callable[[dict[str, np.ndarray]], protocol.Batch],
  schedule: Schedule,
  read_options: Any,
  multiprocessing_options: Any,
  user: Callable[..., Any] | None,
) -> Iterator[protocol.Batch]:
  """Yields the batch of each step of a schedule of `arrays.Block`.

  Args:
    batch: `batch(slots)`, which makes the batch of a step of a block.
    schedule: the steps.
    read_options: a `grain.ReadOptions`: the threads, and how many steps ahead.
    multiprocessing_options: a `grain.MultiprocessingOptions`, or `None`.
    user: a function from the file whose functions `batch` calls, if any.
  """
  import grain

  batches = grain.MapDataset.source(_Steps(schedule)).map(batch)
  batches = batches.to_iter_dataset(read_options)
  if multiprocessing_options:
    batches = _in_processes(batches, multiprocessing_options, user)
  reader = iter(batches)
  try:
    yield from reader
  except OSError as error:
    if error.errno != errno.ENOSPC or not multiprocessing_options:
      raise
    raise RunError(
      "/dev/shm: no space left for the batches of Grain's processes; enlarge "
      'it (docker run --shm-size=1g), or leave out multiprocessing_options'
    ) from error
  finally:
    reader.close()
    if multiprocessing_options:
      gc.collect()  # Reference cycles keep batches in shared memory.


class _Steps:
  """The contents of single steps, computed in blocks; threads may share it."""

  def __init__(self, schedule: Schedule):
    self._schedule = schedule
    self._lock = threading.Lock()
    self._recent = functools.lru_cache(_BLOCKS)(self._block)

  def __reduce__(self):
    return type(self), (self._schedule,)

  def __len__(self) -> int:
    return max(0, self._schedule.stop - self._schedule.start)

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    with self._lock:
      block = self._recent(index // _BLOCK)
    return {name: array[index % _BLOCK] for name, array in block.items()}

  def _block(self, number: int) -> arrays.Block:
    first = self._schedule.start + number * _BLOCK
    steps = np.arange(first, min(first + _BLOCK, self._schedule.stop))
    return self._schedule.block(steps)


def _in_processes(
  batches: Any, options: Any, user: Callable[..., Any] | None
) -> Any:
  from absl import flags
  import cloudpickle

  def owned(batch):  # A batch in shared memory must not outlive this process.
    return {name: np.array(array) for name, array in batch.items()}

  if user:  # Processes cannot import a config file.
    cloudpickle.register_pickle_by_value(sys.modules[user.__module__])
  flags.FLAGS.mark_as_parsed()  # Grain reads its flags, which have defaults.
  return batches.mp_prefetch(options, _follow_parent).map(owned)


def _follow_parent(index: int, count: int) -> None:
  """Leaves signals to the parent process, and ends if the parent is killed."""
  del index, count
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  parent = multiprocessing.parent_process()
  assert parent

  def wait():
    parent.join()
    os._exit(1)

  threading.Thread(target=wait, daemon=True).start()
