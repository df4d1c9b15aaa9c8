"""Mistakes in custom training loops, and the line that each must end with.

A row is a mistake that somebody makes with a loop of four workers. The loop
either works all the same, or an error or a warning of one line names the
mistake and the way out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from flax import nnx
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


def train_stacked(tx):
  """Trains under vmap with this optimizer; fits no line if that works."""

  def step(state, batch):
    params, opt_state = state
    grads = jax.grad(loss)(params, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return ss.synchronize(ss.decision(opt_state), params), opt_state

  params = {'w': jnp.zeros((N, 3))}
  state = params, jax.vmap(tx.init)(params)
  jax.vmap(step, axis_name=ss.AXIS)(state, batches(N, 8))


def average(tree, averager=None):
  """Averages a tree of each worker at a synchronization."""
  averager = averager or ss.mean()
  jax.vmap(
    lambda _: averager.step(jnp.bool(True), tree, averager.init(tree)),
    axis_name=ss.AXIS,
  )(jnp.arange(N))


def delayed_average_in_a_condition():
  averager = ss.delayed(ss.mean(), 2)

  def worker(params):
    return jax.lax.cond(
      jnp.bool(True),
      averager.apply,
      lambda *same: same,
      *(params, averager.init(params)),
    )

  jax.vmap(worker, axis_name=ss.AXIS)(jnp.ones((N, 3)))


class Layer(NamedTuple):
  """A layer whose activation is a leaf, as in an equinox module."""

  weight: Any
  activation: Any = jax.nn.relu


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
  Mistake(
    'fda is first in the chain, where it measures gradients',
    lambda: train_stacked(optax.chain(ss.fda(0.1), optax.sgd(0.1))),
    r'^fda measures updates, and .*: optax.chain\(..., ss.fda\(theta\)\)$',
  ),
  Mistake(
    'fda is before the last transformation',
    lambda: train_stacked(
      optax.chain(optax.adam(0.1), ss.fda(0.1), optax.scale(0.5))
    ),
    '^fda measures updates, and transformations after it change them; put',
  ),
  Mistake(
    'fda is in any_of, and that is first',
    lambda: train_stacked(
      optax.chain(ss.any_of(ss.fda(0.1), ss.every(2)), optax.sgd(0.1))
    ),
    '^fda measures updates, ',
  ),
  Mistake(
    'a trigger wants raw gradients and updates',
    lambda: train_stacked(
      optax.chain(ss.any_of(ss.selsync(0.3), ss.fda(0.1)), optax.sgd(0.1))
    ),
    '^the trigger measures gradients and updates, and no place in a chain ',
  ),
  Mistake(
    'MultiSteps comes after the trigger',
    lambda: train_stacked(
      optax.chain(ss.selsync(0.3), optax.MultiSteps(optax.sgd(0.1), 4))
    ),
    r'at every micro-step, .*: optax.MultiSteps\(optax.chain\(trigger, ',
  ),
  Mistake(
    'a budget is a share of the link',
    lambda: train_stacked(
      optax.chain(ss.budgeted(ss.selsync(0.3), link_share=0.5), optax.sgd(0.1))
    ),
    '^link_share is for islands, .*; set lssr',
  ),
  Mistake(
    'a budget is in bytes',
    lambda: train_stacked(
      optax.chain(
        ss.budgeted(ss.selsync(0.3), bytes_per_step=99.0), optax.sgd(0.1)
      )
    ),
    '^bytes_per_step=99.0: a trigger in a chain .*; set lssr = 1 - ',
  ),
  Mistake(
    'inject_hyperparams makes arrays of all arguments',
    lambda: train_stacked(optax.inject_hyperparams(ss.selsync)(delta=0.3)),
    "^selsync: lag, vote_every must not .* static_args: 'lag', 'vote_every'$",
  ),
  Mistake(
    'inject_hyperparams makes an array of a period',
    lambda: train_stacked(optax.inject_hyperparams(ss.every)(k=3)),
    "^every: k must not be an array; .* static_args: 'k'$",
  ),
  Mistake(
    'a mask leaves the trigger no gradient',
    lambda: train_stacked(optax.masked(ss.selsync(0.3), False)),
    '^the gradient that the trigger measures has no arrays; put the trigger be',
  ),
  Mistake(
    'a delayed averager runs only at synchronizations',
    delayed_average_in_a_condition,
    r'^averager delayed\(mean\(\), 2\) has work to do at every step',
  ),
  Mistake(
    'an nnx module is averaged by reference',
    lambda: average(nnx.Linear(2, 2, rngs=nnx.Rngs(0))),
    r'^Linear is an nnx.Module, .*: nnx.update\(model, ss.synchronize\(sync, ',
  ),
  Mistake(
    'a module with functions in it is averaged',
    lambda: average({'layers': [Layer(jnp.ones(2))]}),
    r'^layers/0/activation is a \w+, not an array; pass only the arrays',
  ),
  Mistake(
    'a module with functions in it is optimized',
    lambda: TX.init([Layer(jnp.ones(2))]),
    r'^0/activation is a \w+, not an array; pass only the arrays',
  ),
]
