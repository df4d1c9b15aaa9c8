"""A small problem for eight workers, one of which lies about its parameters."""

import jax
import jax.numpy as jnp
import numpy as np

N, LIAR, BEGINS = 8, 5, 4  # The first round with a lie.
ROUNDS, PERIOD, BATCH, SIZE = 40, 20, 16, 5
RATE = 0.1
LIES = 'honest', 'flipped', 'not finite', 'scaled', 'stale', 'replayed'
_RNG = np.random.default_rng(0)


def _examples(*shape):
  x = _RNG.normal(size=(*shape, SIZE)).astype(np.float32)
  y = np.tanh(x @ np.linspace(-1, 1, SIZE)) + 0.3 * _RNG.normal(size=shape)
  return x, y.astype(np.float32)


X, Y = _examples(ROUNDS, N, PERIOD, BATCH)
HELD_OUT = _examples(20_000)
START = {
  'w': _RNG.normal(size=(SIZE, 16)).astype(np.float32) / 2,
  'v': _RNG.normal(size=16).astype(np.float32) / 4,
}


def loss(params, x, y):
  return jnp.mean((jnp.tanh(x @ params['w']) @ params['v'] - y) ** 2)


def train(params, x, y):
  """The parameters after a period of local steps of SGD."""

  def step(params, batch):
    grads = jax.grad(loss)(params, *batch)
    return jax.tree.map(lambda p, g: p - RATE * g, params, grads), None

  return jax.lax.scan(step, params, (x, y))[0]


def told(lie, params, before, first):
  """The values that a liar sends, by the index of its lie.

  Args:
    lie: an index of `LIES`.
    params: its parameters.
    before: its parameters two rounds before.
    first: its parameters in the last round without a lie.
  """

  def each(p, b, f):
    lies = p, -p, jnp.full_like(p, jnp.nan), 100 * p, b, f
    return jnp.stack(lies)[lie]

  return jax.tree.map(each, params, before, first)


def losses(averager):
  """Held-out losses by lie, and each round's reported worker [lies, rounds]."""

  def worker(lie, x, y):
    lies = (jax.lax.axis_index('workers') == LIAR) * lie

    def step(carry, now):
      params, state, past, first = carry
      index, *batch = now
      params = train(params, *batch)
      first = jax.tree.map(
        lambda p, f: jnp.where(index < BEGINS, p, f), params, first
      )
      sent = told(jnp.where(index < BEGINS, 0, lies), params, past[0], first)
      past = past[1], params
      params, state = averager.step(jnp.array(True), sent, state)
      report = averager.metrics(state).get('least_weighted', -1)
      return (params, state, past, first), report

    start = jax.tree.map(jnp.asarray, START)
    carry = start, averager.init(start), (start, start), start
    (params, *_), reports = jax.lax.scan(
      step, carry, (jnp.arange(ROUNDS), x, y)
    )
    return loss(params, *HELD_OUT), reports

  workers = jax.vmap(worker, (None, 1, 1), axis_name='workers')
  run = jax.jit(jax.vmap(lambda lie: workers(lie, X, Y)))
  found, reports = run(jnp.arange(len(LIES)))
  return np.asarray(found)[:, 0], np.asarray(reports)[:, 0]
