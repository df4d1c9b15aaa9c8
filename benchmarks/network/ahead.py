"""Cost of votes that islands do not wait for.

  python -m benchmarks.network.ahead --step=100

Trains two islands on this machine, whose steps leave the CPU idle for some
milliseconds, like steps on a GPU. Their coordinator is behind a relay, through
which a message takes half a step each way: a vote takes a step. At each step
they vote, and in one of 10 or 50 the first island asks for an average, as in
SelSync with an LSSR of 0.9 or 0.98. Times runs that wait for their votes and
runs that begin the next step meanwhile, beside runs that average as often
without votes. Prints the milliseconds of a step, their ratio to runs without
votes, `selsync plan`'s ratio, and the limit. Writes ahead.json. On a busy
machine, every thread that a vote wakes adds to its time.
"""

import argparse
from concurrent import futures
import functools
import multiprocessing
import os
import pathlib
import tempfile
import threading
import time
from typing import Any
from unittest import mock

from benchmarks.table import parser, report, Table

LIMITS = {0.9: 1.15, 0.98: 1.05}
ALONE, AHEAD = 'no votes', 'votes ahead'
WAYS = ALONE, 'votes awaited', AHEAD


def register(seconds: float) -> None:
  """Registers the model `idle`, whose step takes some seconds."""
  import flax.linen as nn
  import jax
  import jax.numpy as jnp
  import numpy as np

  from selsync_jax import models

  device = threading.Lock()  # A GPU computes one step at a time.

  def pause(_):
    with device:
      time.sleep(seconds)
    return np.float32(0)

  class Idle(nn.Module):
    num_classes: int
    num_filters: int = 8
    dtype: str = 'float32'

    @nn.compact
    def __call__(self, x, *, train):
      if train:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        x += jax.pure_callback(pause, shape, x[0, 0, 0, 0])
      return nn.Dense(self.num_classes)(x.reshape(len(x), -1))

  models.MODELS['idle'] = Idle


def strategy_of(way: str, period: int) -> Any:
  """A mean in one of some steps; with votes, the first island asks for it."""
  from jax import lax
  import jax.numpy as jnp

  import selsync_jax as ss

  every = ss.every(period)

  def update(updates, state, params=None, **_):
    new = every.update(updates, state, params)[1]
    asks = new.sync & (lax.axis_index(ss.AXIS) == 0)
    sync = lax.psum(jnp.int32(asks), ss.AXIS) > 0
    return updates, new._replace(sync=sync)

  trigger = every if way == ALONE else ss.Trigger(every.init, update)
  return ss.Strategy(trigger, ss.mean())


def island(
  name: str,
  invitation: str,
  folder: str,
  way: str,
  lssr: float,
  options: argparse.Namespace,
) -> float:
  """Trains an island; returns its milliseconds of a step."""
  register(options.step / 1e3)
  from selsync_jax.commands import config_file
  from selsync_jax.devices import backend
  from selsync_jax.islands import joining, participants
  from selsync_jax.runs import records
  from selsync_jax.training import setup
  from selsync_jax.training.train import train_and_evaluate

  fields = {'workers': 2, 'steps': options.skipped + options.steps}
  fields |= {'model.name': 'idle', 'data.backend': 'numpy'}
  fields |= {'eval.every_epochs': 1e3, 'checkpoint.every': 10**6}
  settings = config_file.settings('digits', config_file.arguments(fields))
  strategy = strategy_of(way, round(1 / (1 - lssr)))
  workdir = pathlib.Path(folder) / name
  join = functools.partial(joining.join, joining.Invitation.parse(invitation))
  with (
    mock.patch.object(setup, '_strategy', return_value=strategy),
    backend.start('cpu', workers=1),
    participants.joined(
      *(name, settings, workdir, {}, join), speculates=way == AHEAD
    ) as joined,
  ):
    # Programs differ: each has the address of its callback.
    joined.compare = lambda setup: None
    train_and_evaluate(settings, workdir, participants=joined)
  rows = [*records.read_metrics(workdir)][options.skipped - 1 :]
  seconds = rows[-1]['seconds'] - rows[0]['seconds']
  return 1e3 * seconds / options.steps


def slowest(way: str, lssr: float, options: argparse.Namespace) -> float:
  """The milliseconds of a step of the slower island."""
  from selsync_jax.islands.server import CoordinatorServer
  from tests.support.distance import distant

  context = multiprocessing.get_context('spawn')
  with (
    tempfile.TemporaryDirectory() as folder,
    CoordinatorServer(2) as point,
    distant(str(point.invitation), options.step / 2e3) as invitation,
    futures.ProcessPoolExecutor(2, mp_context=context) as pool,
  ):
    run = functools.partial(
      island,
      invitation=invitation,
      folder=folder,
      way=way,
      lssr=lssr,
      options=options,
    )
    return max(pool.map(run, ('maui', 'oahu')))


def planned(lssr: float, options: argparse.Namespace) -> dict[str, float]:
  """The ratio of each way to a step without votes, as planned."""
  import jax
  import numpy as np

  import selsync_jax as ss
  from selsync_jax.sync.network import Network
  from selsync_jax.training import step_cost

  params = {'w': jax.ShapeDtypeStruct((640,), np.float32)}
  seconds = options.step / 1e3
  cost = step_cost.cost(
    ss.Strategy(ss.selsync(0.3), ss.mean()),
    {'params': params, 'model_state': {}},
    Network(2, np.inf, seconds / 2),
    lssr,
    compute=seconds,
  )
  waits = 0.0, cost.vote, cost.ahead
  return {
    way: 1 + wait / seconds for way, wait in zip(WAYS, waits, strict=True)
  }


def main() -> None:
  flags = parser(__doc__, 'ahead.json', step=100, steps=300, skipped=20)
  options = flags.parse_args()
  rows, result = [], {**vars(options), 'cores': os.cpu_count(), 'found': {}}
  for lssr, limit in LIMITS.items():
    found = {way: slowest(way, lssr, options) for way in WAYS}
    plan = planned(lssr, options)
    result['found'][lssr] = found
    rows += [
      [
        *(f'{lssr}', way, f'{ms:.2f}', f'{ms / found[ALONE]:.3f}'),
        *(f'{plan[way]:.3f}', f'{limit}' if way == AHEAD else ''),
      ]
      for way, ms in found.items()
    ]
  head = 'LSSR', '', 'ms a step', 'ratio', 'planned', 'limit'
  title = f'2 islands, steps and round trips of {options.step} ms'
  report(options.out, result, Table(head, rows, title))


if __name__ == '__main__':
  main()
