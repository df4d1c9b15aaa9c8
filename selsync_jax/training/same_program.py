"""Checks that all processes would run the same training step on the same data.

Equal configs do not suffice: a host may have other code or other files. Workers
would then diverge or hang.
"""

import dataclasses
import hashlib
import json

import jax
from jax.experimental import multihost_utils
import numpy as np

from selsync_jax.config import RunError
from selsync_jax.devices import mappers
from selsync_jax.devices.mapper import abstract
from selsync_jax.training.setup import Setup


def check(setup: Setup) -> None:
  """Compares data and the step's program with those of the other processes.

  Raises:
    RunError: on every process, if one of them has others.
  """
  if jax.process_count() == 1:
    return
  text = json.dumps(setup.problem.data.fingerprint) + program(setup)
  digest = hashlib.sha256(text.encode()).digest()
  digests = multihost_utils.process_allgather(np.frombuffer(digest, np.uint32))
  others = np.flatnonzero((digests != digests[0]).any(axis=1))
  if others.size:
    raise RunError(
      f'process {others[0]} has other data, or would run another training '
      'step, than process 0; give all of them the same code, files and config'
    )


def program(setup: Setup) -> str:
  """Returns the step of all workers on one device, as StableHLO.

  JAX cannot lower a pmapped function of several processes from shapes alone.
  """
  problem, workers = setup.problem, setup.plan.workers
  batch = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      (problem.batch_size, *np.shape(x)[1:]), np.asarray(x).dtype
    ),
    problem.data.example,
  )
  alone = dataclasses.replace(
    setup, plan=setup.plan._replace(mapper=mappers.Vmap(workers))
  )
  lowered = jax.jit(alone.train_step()).lower(
    abstract(setup.shapes, workers), abstract(batch, workers)
  )
  return lowered.as_text()
