"""Triggers over recorded gradients, training loops, and references."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import selsync_jax as ss
from selsync_jax.devices import layout
from selsync_jax.sync.consensus import AXIS
from selsync_jax.training.step import init_state, train_step


def run(tx, grads, mapper='vmap'):
  """The state after each step, for grads [steps, workers, ...]."""

  def worker(grads):
    def step(state, grad):
      state = tx.update(grad, state)[1]
      return state, state

    return jax.lax.scan(step, tx.init(grads[0]), grads)[1]

  chosen = layout.choose(mapper, grads.shape[1])
  states = chosen.map_workers(worker)(jnp.swapaxes(grads, 0, 1))
  states = jax.tree.map(lambda x: np.swapaxes(x, 0, 1), jax.device_get(states))
  return [jax.tree.map(lambda x, i=i: x[i], states) for i in range(len(grads))]


def loop(tx, gradient, w, batches, mapper='vmap'):
  """Yields parameters and flags after each step of a custom training loop.

  Args:
    tx: the optimizer, with a trigger.
    gradient: each worker's gradient, from its parameters and its batch.
    w: parameters that the workers start from, [workers, ...].
    batches: a batch for each step, [workers, ...].
    mapper: see `layout.choose`.
  """

  def step(w, state, batch):
    updates, state = tx.update(gradient(w, batch), state, w)
    w, sync = optax.apply_updates(w, updates), ss.decision(state)
    return ss.synchronize(sync, w), state, sync

  chosen = layout.choose(mapper, len(w))
  state, step = chosen.map_workers(tx.init)(w), chosen.map_workers(step)
  for batch in batches:
    w, state, sync = step(w, state, batch)
    yield np.asarray(w), np.asarray(sync)


def reference(grads, smoothing):
  """The paper's RelativeGradChange in float64, [steps, workers]."""
  changes, past = [], None
  for grad in grads.astype(np.float64):
    x = np.sum(np.square(grad), axis=tuple(range(1, grad.ndim)))
    now = x if past is None else smoothing * x + (1 - smoothing) * past
    change = np.inf * x if past is None else np.abs(now - past) / past
    changes.append(change)
    past = now
  return np.array(changes)


def quadratic(params, model_state, batch, key):
  """The loss of a worker whose curve and goal are its batch."""
  curve, goal = batch
  return jnp.sum(curve * (params - goal) ** 2) / 2, ({}, model_state)


def train(strategy, optimizer, params, batch, steps, loss=quadratic):
  """Parameters and metrics after each step, [steps, workers, ...].

  Every worker has the same row of the batch at every step.
  """
  strategy.check()
  step = train_step(loss, strategy, optimizer, seed=0)
  start = init_state(params, {}, strategy, optimizer)

  def worker(batch):
    def go(state, _):
      state, metrics = step(state, batch)
      return state, (state.params, metrics)

    return jax.lax.scan(go, start, length=steps)[1]

  results = jax.jit(jax.vmap(worker, axis_name=AXIS))(batch)
  return jax.tree.map(lambda x: np.swapaxes(np.asarray(x), 0, 1), results)
