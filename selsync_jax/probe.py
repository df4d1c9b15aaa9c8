"""The first steps of a run, for what they show; nothing is written."""

import time
from typing import NamedTuple

import jax
from jaxtyping import Bool, Float
import ml_collections
import numpy as np

from selsync_jax import job as job_lib
from selsync_jax import tasks
from selsync_jax import workers
from selsync_jax.strategies import parts


class Probe(NamedTuple):
  """What some steps showed.

  Attributes:
    changes: float32 [steps, workers], relative gradient change.
    synced: bool [steps], whether the workers synchronised.
    seconds: float64 [steps], wall-clock time; the first compiles.
    traffic: what a step and a synchronisation send.
    payload: bytes of the parameters of one worker.
    total_steps: of the whole run.
  """

  changes: Float[np.ndarray, 'steps workers']
  synced: Bool[np.ndarray, 'steps']
  seconds: Float[np.ndarray, 'steps']
  traffic: parts.Traffic
  payload: int
  total_steps: int


def run(config: ml_collections.ConfigDict, steps: int) -> Probe:
  """Takes the first steps of a run, with its own schedule.

  Args:
    config: of the run.
    steps: how many to take; fewer if the run is shorter.

  Raises:
    ConfigError: for a value that breaks its rule.
  """
  job = job_lib.prepare(config)
  workers.check_devices(config.workers, config.mapper)
  fresh = workers.create_state(
    *tasks.init(
      job.model, job.task, job.data.example, jax.random.key(config.seed)
    ),
    job.tx,
    job.strategy.averager,
  )
  take = workers.map_workers(
    workers.train_step(
      tasks.train_loss(job.model, job.task),
      job.tx,
      job.strategy.averager,
      config.seed,
      0,
    ),
    config.mapper,
    donate=(0,),
  )
  state = workers.replicate(fresh, config.workers)
  state = workers.place(state, config.mapper)
  rows = []
  batches = job.data.train_batches(
    range(config.workers), 0, min(steps, job.steps)
  )
  began = time.monotonic()
  for batch in batches:
    state, metrics = take(state, batch)
    metrics = jax.device_get(metrics)
    now = time.monotonic()
    rows.append((metrics['relative_change'], metrics['synced'][0], now - began))
    began = now
  changes, synced, seconds = map(np.array, zip(*rows, strict=True))
  return Probe(
    changes,
    synced,
    seconds,
    parts.traffic(job.strategy, fresh.shared, config.workers),
    parts.nbytes(fresh.params),
    job.steps,
  )
