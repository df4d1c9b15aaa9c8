"""Runs that continue with another number of workers."""

import math
import shutil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.config import ConfigError
from selsync_jax.configs import digits
from selsync_jax.devices import mappers
from selsync_jax.methods import Context, create_strategy
from selsync_jax.runs import ledger
from selsync_jax.sync.traffic import Traffic
from selsync_jax.training import start as elastic
from selsync_jax.training.problem import create_problem
from selsync_jax.training.settings import check
from selsync_jax.training.step import init_state
from selsync_jax.training.train import train_and_evaluate
from tests.support import live_runs, short_runs
from tests.support.marks import slow
from tests.support.short_runs import rows, run


@pytest.mark.parametrize(
  'count, rule, size, batches',
  [
    (2, 'total', 64, 1),
    (8, 'total', 16, 1),
    (3, 'total', 43, 129 / 128),  # As near as whole examples allow.
    (500, 'total', 1, 500 / 128),
    (2, 'worker', 32, 1 / 2),
    (8, 'worker', 32, 2),
    (4, 'total', 32, 1),
  ],
)
def test_the_learning_rate_goes_with_the_batch_of_all(
  count, rule, size, batches
):
  config = digits.get_config()
  config.workers, config.checkpoint.resize_batch = count, rule
  record = {'workers': 4, 'batch_size': 32, 'learning_rate': 0.3}
  fitted = elastic.adapt(check(config), record)
  assert fitted.config.batch_size == size
  assert fitted.learning_rate == pytest.approx(0.3 * batches)


def test_the_devices_of_a_worker_can_share_its_new_batch_and_its_pieces():
  config = digits.get_config()
  config.update(workers=3, mapper='mesh', mesh={'data': 1, 'fsdp': 4})
  record = {'workers': 4, 'batch_size': 32, 'learning_rate': 0.3}
  for accumulate, size in ((1, 44), (2, 40)):  # Not 43.
    config.accumulate = accumulate
    fitted = elastic.adapt(check(config), record)
    assert fitted.config.batch_size == size


@pytest.mark.parametrize('rule', ['total', 'worker'])
@pytest.mark.parametrize('size', [24, 31, 32])
def test_the_same_number_of_workers_continues_exactly_as_before(rule, size):
  """Even if a resize has changed the config's values."""
  config = digits.get_config()
  config.checkpoint.resize_batch = rule
  record = {'workers': 4, 'batch_size': size, 'learning_rate': 0.1 / 3}
  fitted = elastic.adapt(check(config), record)
  assert fitted.config.batch_size == size
  assert fitted.learning_rate == 0.1 / 3


def test_a_mesh_whose_devices_cannot_share_the_batch_so_far_is_refused():
  config = digits.get_config()
  config.update(mapper='mesh', mesh={'data': 2, 'fsdp': 1})
  record = {'workers': 4, 'batch_size': 31, 'learning_rate': 0.1}
  with pytest.raises(ConfigError, match='batch_size=31: must be a multiple'):
    elastic.adapt(check(config), record)


@pytest.mark.parametrize('updates', [0, 5])
def test_adams_next_update_is_the_same_as_without_a_resize(updates):
  """Even if its moments are as young as after a reset."""

  def rate(position):
    return jnp.where(position == 1000, 1e-3, 0.0)

  params = {'w': np.ones(3, np.float32)}
  grads = {'w': np.array([0.5, -1.0, 2.0], np.float32)}
  strategy = create_strategy('bsp', Context(10, 0))
  adam, alone = optax.adam(rate), optax.adam(1e-3)
  fresh = init_state(params, {}, strategy, adam)
  old, expected = fresh, alone.init(params)
  for _ in range(updates):
    _, moments = adam.update(grads, old.opt_state)
    old = old.replace(opt_state=moments)
    _, expected = alone.update(grads, expected)
  resized = elastic.resize(
    mappers.Vmap(4).stack(old),
    mappers.Vmap(2).stack(fresh),
    strategy,
    range(2),
    'mean',
    1000,
  )
  first = jax.tree.map(lambda leaf: leaf[0], resized.opt_state)
  jax.tree.map(
    lambda new, wanted: np.testing.assert_allclose(new, wanted, rtol=1e-5),
    adam.update(grads, first)[0],
    alone.update(grads, expected)[0],
  )


class OwnState(NamedTuple):
  """Fields with names that other parts' states use with another meaning."""

  step: Any
  q: Any
  error: Any
  threshold: Any
  sync: Any


def own_trigger(**declared):
  """A user's trigger, whose state counts in fields of any name."""

  def init(params):
    one = jnp.float32(1)
    return OwnState(one, one, one, one, jnp.bool(False))

  def update(updates, state, params=None, **extra_args):
    return updates, state

  return ss.Trigger(init, update, **declared)


@pytest.mark.parametrize(
  'declared, expected',
  [
    ({}, [1, 1, 1, 1]),
    (
      {
        'resize': ss.resizing.fields(
          step=ss.resizing.position, q=ss.resizing.first, error=ss.resizing.mean
        )
      },
      [1000, 2, 3, 1],
    ),
  ],
)
@pytest.mark.parametrize('compiled', [False, True])
def test_a_trigger_says_what_becomes_of_its_state_and_its_names_do_not(
  declared, expected, compiled
):
  params, sgd = {'w': jnp.ones(3)}, optax.sgd(0.1)
  strategy = ss.Strategy(own_trigger(**declared), ss.mean())
  fresh = init_state(params, {}, strategy, sgd)
  old = mappers.Vmap(3).stack(fresh)
  left = jnp.array([2.0, 3, 4])
  state = OwnState(left, left, left, left, old.trigger_state.sync)
  old, new = old.replace(trigger_state=state), mappers.Vmap(2).stack(fresh)

  def resized(old, new):
    return elastic.resize(old, new, strategy, range(2), 'mean', 1000)

  if compiled:
    result = jax.jit(resized)(old, new)
  else:
    result = resized(jax.device_get(old), jax.device_get(new))
  *values, sync = result.trigger_state
  np.testing.assert_array_equal(np.transpose(values), [expected] * 2)
  assert not sync.any()


@pytest.mark.parametrize('period', [None, 40])
def test_steps_keep_the_unit_of_the_batch_that_the_run_started_with(period):
  config = digits.get_config()
  config.update(steps=120, workers=2)
  config.checkpoint.resize_batch = 'worker'
  if period:
    config.schedule.update(name='staircase', period=period, factor=0.5)
  lengths = [120]
  record = {'workers': 4, 'batch_size': 32, 'learning_rate': 0.1}
  for config.workers in (3, 3, 8, 1, 4):
    fitted = elastic.adapt(check(config), record)
    record.update(workers=config.workers, learning_rate=fitted.learning_rate)
    steps, schedule = fitted.config.steps, fitted.schedule.arguments
    lengths.append(steps)
    assert schedule.get('period') == (period and round(steps / 3))
  assert lengths == [120, 160, 160, 60, 480, 120]


def test_bytes_sent_before_a_resize_stay_counted():
  totals = ledger.Totals()
  metrics = {
    'relative_change': np.ones(1),
    'synced': np.ones(1, bool),
    'count': np.ones(1, int),
  }
  for traffic, steps in (
    (Traffic(step=4, sync=100, bsp=90, injected=3), 2),
    (Traffic(step=4, sync=200, bsp=180, injected=5), 3),
  ):
    session = ledger.Ledger(totals, traffic, 10, np.full(10, 0.1), 0)
    for _ in range(steps):
      row = session.enter(metrics, 1.0)
  summary = session.summary()
  assert summary['injection_bytes'] == 2 * 3 + 3 * 5
  assert summary['bytes_per_worker_bsp'] == 2 * 90 + 3 * 180
  assert summary['bytes_per_worker'] == row['bytes_per_worker']
  assert summary['bytes_per_worker'] == 2 * 107 + 3 * 209


@pytest.mark.parametrize(
  'method, count, rule, batch, size, factor',
  [
    slow('selsync', 2, 'mean', 'total', 64, 1),
    slow('selsync', 3, 'clone', 'worker', 32, 3 / 4),
    slow('diloco', 8, 'mean', 'total', 16, 1),
  ],
)
def test_another_number_of_workers_can_continue(
  method, count, rule, batch, size, factor, tmp_path, capsys
):
  length = dict(steps=None, epochs=9.0, checkpoint__every=40, ema_decay=0.9)
  half = dict(length, epochs=4.0)
  begun = run(tmp_path / 'resized', method, **half)
  capsys.readouterr()
  resized = run(
    tmp_path / 'resized',
    method,
    workers=count,
    checkpoint__resize=rule,
    checkpoint__resize_batch=batch,
    **length,
  )
  assert capsys.readouterr().out.splitlines()[2] == (
    f'resuming from step 40 with {count} workers instead of 4: parameters from '
    f'the consensus, optimizer state by {rule}, batches of {size}, learning '
    f'rate {factor * 0.1:.3g}, trigger state reset, data at epoch 4.00'
  )
  steps = [row['step'] for row in rows(tmp_path / 'resized')]
  per_epoch = math.ceil(math.ceil(1257 / count) / size)
  assert steps == list(range(1, 40 + 5 * per_epoch + 1))
  assert resized['samples'] == 9 * 1257
  after = rows(tmp_path / 'resized')[40:]
  # In a ring each of N workers sends 2 (N-1)/N times the parameters.
  before, now = 2 * 3 / 4, 2 * (count - 1) / count
  sent = begun['bytes_per_worker_bsp'] / begun['steps'] / before
  assert resized['bytes_per_worker_bsp'] == round(
    sent * (40 * before + len(after) * now)
  )
  counted = np.array([row['bytes_per_worker'] for row in after])
  last = rows(tmp_path / 'resized')[39]['bytes_per_worker']
  assert (np.diff(counted, prepend=last) >= 0).all()
  if method == 'selsync':
    assert after[0]['synced'] and after[0]['relative_change'] is None
  assert after[0]['epoch'] == pytest.approx(4 + 1 / per_epoch)
  config = short_runs.config(method, model__name='convnet', **length)
  alone = create_problem(check(config))
  there = float(alone.learning_rate(40))
  assert after[0]['lr'] == pytest.approx(factor * there, rel=0.01)
  assert np.isfinite([row['loss'] for row in after]).all()


def next_loss(workdir, step):
  """The validation loss at the first evaluation after a step."""
  return next(
    row['validation_loss']
    for row in rows(workdir)
    if 'validation_loss' in row and row['step'] > step
  )


@pytest.mark.slow
def test_a_resized_run_stays_within_five_percent_of_an_undisturbed_one(
  tmp_path, data_dir
):
  """The default run, resized at epoch 20 of 30, at the next evaluation."""
  config = digits.get_config()
  config.mapper, config.data.dir, config.checkpoint.every = (
    'auto',
    data_dir,
    100,
  )
  alone = tmp_path / 'alone'
  train_and_evaluate(config, alone)
  for config.workers in (2, 8):
    resized = shutil.copytree(alone, tmp_path / str(config.workers))
    live_runs.go_back(resized, 200)
    train_and_evaluate(config, resized)
    assert next_loss(resized, 200) / next_loss(alone, 200) < 1.05
