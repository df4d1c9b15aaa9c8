"""The rules that are compared at equal bytes."""

import jax
import jax.numpy as jnp
import optax
import pytest

from benchmarks.quality import triggers
from benchmarks.quality.rules_test import tried
from benchmarks.quality.triggers import PERIOD, RULES, STUDY
import selsync_jax as ss
from selsync_jax.commands import config_file
from selsync_jax.methods import Context, METHODS
from selsync_jax.training.settings import check
from tests.support import own_code

SHARED = {'params': {'w': jnp.zeros((64, 64)), 'b': jnp.zeros(64)}}


@pytest.fixture(autouse=True)
def rules():
  """The methods of the rules, until a test ends."""
  with own_code.forgotten():
    config_file.load(f'{triggers.FILE}:evenly,text', [])
    yield METHODS


def averaged(strategy, steps=400):
  """The metrics of an averager that averages parameters on random walks."""
  averager, period = strategy.averager, strategy.trigger.traits.period

  def worker(key):
    def step(carry, key):
      params, state = carry
      noise = optax.tree.random_like(key, params)
      params = optax.tree.add(params, optax.tree.scale(0.1, noise))
      params, state = averager.average(params, state)
      return (params, state), averager.metrics(state)

    start = optax.tree.ones_like(SHARED['params'])
    keys = jax.random.split(key, steps // period)
    return jax.lax.scan(step, (start, averager.init(start)), keys)[1]

  keys = jax.random.split(jax.random.key(0), 4)
  found = jax.jit(jax.vmap(worker, axis_name=ss.AXIS))(keys)
  return {name: float(jnp.mean(each)) for name, each in found.items()}


def sent(trial):
  """The bytes of a worker per step, when a budget is met."""
  strategy = check(trial.config).method(Context(100, trial.seed))
  shared = SHARED | {'model_state': {}}
  moments = optax.adam(1.0).init(SHARED['params'])
  every = strategy.sends(shared, 4, moments)
  scales = {None: 1.0}
  if strategy.averager.metrics(strategy.averager.init(shared)):
    scales |= averaged(strategy)
  period = strategy.trigger.traits.period
  often = 1 / period if period else 0.2
  return sum(
    c.sent(4) * scales.get(c.scale, 1) * (often if c.at == 'sync' else 1)
    for c in every
  )


@pytest.mark.slow
def test_no_rule_sends_more_bytes_than_the_period(tmp_path):
  (period, *_) = tried(STUDY, 'text', PERIOD, tmp_path).values()
  for rule in RULES:
    for spec, trial in tried(STUDY, 'text', rule, tmp_path).items():
      if spec != 'bsp':
        assert 0.8 < sent(trial) / sent(period) < 1.06


@pytest.mark.parametrize('h_min', [2, 4])
@pytest.mark.parametrize('peak', [0.01, 0.1])
def test_the_quadratic_rule_keeps_to_its_budget(h_min, peak, rules):
  rate = optax.warmup_cosine_decay_schedule(0.0, peak, 50, 600)
  context = Context(100, 0, rate)
  trigger = rules['quadratic'](context, h_min=h_min, steps=600).trigger

  def step(state, _):
    _, state = trigger.update({}, state)
    return state, state.sync

  synced = jax.lax.scan(step, trigger.init({}), None, length=600)[1]
  assert int(synced.sum()) == pytest.approx(120, abs=2)


def test_an_array_alone_can_ask_for_an_average(rules):
  trigger = rules['by_array_change'](Context(100, 0)).trigger
  quiet = {'a': jnp.full(4, 100.0), 'b': jnp.full(4, 0.1)}
  loud = quiet | {'b': jnp.full(4, 1.0)}  # The whole norm hardly changes.

  def run(grads):
    def step(state, grad):
      _, state = trigger.update(grad, state)
      return state, state.trigger.score

    return jax.lax.scan(step, trigger.init(quiet), grads)[1]

  each = [quiet] * 3 + [loud]
  grads = jax.tree.map(lambda *x: jnp.stack([jnp.stack(x)] * 2), *each)
  scores = jax.vmap(run, axis_name=ss.AXIS)(grads)[0]
  assert scores[3] > 10 and scores[1] == scores[2] == 0
