"""Mistakes in custom training loops, and the line that each must end with.

A row is a mistake that somebody makes with a loop of four workers. The loop
either works all the same, or an error or a warning of one line names the
mistake and the way out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import selsync_jax as ss

N = 4
RIGHT = 'right'


class Mistake(NamedTuple):
  """A mistake in a custom training loop.

  Attributes:
    name: the mistake in a few words, the id of its test.
    loop: the loop with the mistake. If the loop is right all the same, it
      returns two trees that must be equal to rounding.
    line: a regular expression for the error or warning, or `RIGHT`.
  """

  name: str
  loop: Callable[[], Any]
  line: str


def selective(*others: optax.GradientTransformation) -> Any:
  """Returns SGD with SelSync first, and the other transformations behind it."""
  return optax.chain(ss.selsync(0.3), *others, optax.sgd(0.1))


TX = selective()


def loss(params, batch):
  """Returns the squared error of a linear model on one worker's batch."""
  return jnp.mean((batch['x'] @ params['w'] - batch['y']) ** 2)


def start(worker):
  """Returns parameters and optimizer state of one worker."""
  del worker
  params = {'w': jnp.zeros(3)}
  return params, TX.init(params)


def step(state, batch):
  """Takes one worker's step, without a mistake."""
  params, opt_state = state
  grads = jax.grad(loss)(params, batch)
  updates, opt_state = TX.update(grads, opt_state, params)
  params = optax.apply_updates(params, updates)
  params = ss.synchronize(ss.decision(opt_state), params)
  return params, opt_state


def batches(*leading: int) -> dict[str, np.ndarray]:
  """Returns a batch with these leading axes, on the host."""
  x = np.random.default_rng(0).normal(size=(*leading, 3)).astype(np.float32)
  return {'x': x, 'y': x.sum(-1)}


def batch_not_stacked():
  layout = ss.Layout(N)
  layout.map_workers(step)(layout.create(start), batches(32))


def batch_of_a_loader_on_the_device():
  layout = ss.Layout(N)
  batch = jax.tree.map(jnp.asarray, batches(30))
  layout.map_workers(step)(layout.create(start), batch)


def batch_not_stacked_for_workers_of_two_devices():
  layout = ss.Layout(N, data=2)
  layout.map_workers(step)(layout.create(start), batches(32))


def state_of_more_workers():
  layout = ss.Layout(N)
  saved = jax.device_get(ss.Layout(2 * N).create(start))
  layout.map_workers(step)(saved, batches(N, 8))


def learning_rate_without_rows():
  layout = ss.Layout(N)
  layout.map_workers(lambda batch, rate: rate)(batches(N, 8), 0.1)


MISTAKES = [
  Mistake(
    'a batch is not stacked',
    batch_not_stacked,
    r"^argument 1\['x'\] has leading axis 32, for 4 workers: pass a row for "
    r'each worker; a batch is stacked as \[4, 8, 3\]$',
  ),
  Mistake(
    'a batch is not stacked, and 4 workers cannot share it evenly',
    batch_of_a_loader_on_the_device,
    r"^argument 1\['x'\] has leading axis 30, for 4 workers: pass a row for "
    r'each worker; a batch is stacked as \[4, examples, 3\]$',
  ),
  Mistake(
    'a batch is not stacked, and a worker has two devices',
    batch_not_stacked_for_workers_of_two_devices,
    r"^argument 1\['x'\] has leading axis 32, for 4 workers: pass a row for "
    r'each worker; a batch is stacked as \[4, 8, 3\]$',
  ),
  Mistake(
    'the state is that of more workers',
    state_of_more_workers,
    r"^argument 0\[0\]\['w'\] has leading axis 8, for 4 workers: ",
  ),
  Mistake(
    'a number is passed that is not stacked',
    learning_rate_without_rows,
    '^argument 1 has no leading axis, for 4 workers: pass a row',
  ),
]
