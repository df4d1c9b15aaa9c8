"""The mapped step: its communication, and agreement of pmap and vmap."""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax import models
from selsync_jax.config import ConfigError
from selsync_jax.devices import layout
from selsync_jax.models import tasks
from selsync_jax.training.gradient import gradient
from selsync_jax.training.step import init_state, train_step
from tests.support import programs
from tests.support.marks import slow
from tests.support.perceptron import Bigram, Normalized, Perceptron

N = 4
DENSE = Perceptron(10, 64)
# Each worker has its own statistics and randomness.
NORMED = Normalized(10, 16, dropout=0.5)


def batches(steps, size=32):
  rng = np.random.default_rng(0)
  for _ in range(steps):
    label = rng.integers(10, size=(N, size))
    image = rng.normal(size=(N, size, 8, 8, 1)) + label[..., None, None, None]
    yield {
      'image': image.astype(np.float32),
      'label': label.astype(np.int32),
      'mask': np.ones((N, size), bool),
    }


class Run:
  """SelSync on a model, step by step."""

  def __init__(
    self,
    model,
    mapper,
    delta=0.1,
    optimizer=None,
    averager=None,
    accumulate=1,
    ema_decay=None,
    **mesh,
  ):
    task = tasks.TASKS['classification']
    strategy = ss.Strategy(ss.selsync(delta), averager or ss.mean())
    optimizer = optimizer or optax.sgd(0.05, momentum=0.9)
    example = jax.tree.map(lambda x: x[0, :1], next(batches(1)))
    params, model_state = tasks.init(model, task, example, jax.random.key(0))
    state = init_state(params, model_state, strategy, optimizer, ema_decay)
    self.traces = 0
    loss = tasks.train_loss(model, task)

    def counted(*args):
      self.traces += 1
      return loss(*args)

    self.mapper = layout.choose(mapper, N, **mesh)
    step = train_step(
      counted,
      strategy,
      optimizer,
      seed=0,
      alone=self.mapper.alone,
      accumulate=accumulate,
      ema_decay=ema_decay,
    )
    self.state = self.mapper.replicate(lambda: state)
    self.step = self.mapper.map_workers(step)

  def train(self, steps):
    synced = []
    for batch in batches(steps):
      self.state, metrics = self.step(self.state, batch)
      synced.append(bool(np.asarray(metrics['synced'])[0]))
    return synced


def params(run):
  return jax.tree.leaves(jax.device_get(run.state.params))


def dense_loss(params, model_state, batch, key):
  del key
  x, y = batch
  error = jnp.mean((nn.relu(x @ params['w']) @ params['v'] - y) ** 2)
  return error, ({'loss': error}, model_state)


def test_pmap_and_vmap_of_a_dense_model_agree_bit_for_bit():
  """Only matrix products: XLA may reorder other reductions."""
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(2, 20, N, 32, 64)).astype(np.float32)
  weights = rng.normal(size=(2, 64, 64)).astype(np.float32) / 8
  strategy = ss.Strategy(ss.selsync(0.02, smoothing=0.04), ss.mean())
  optimizer = optax.sgd(0.1, momentum=0.9)
  start = dict(zip('wv', weights, strict=True))
  start = init_state(start, {}, strategy, optimizer)
  states, flags = [], []
  for mapper in ('pmap', 'vmap'):
    step = train_step(dense_loss, strategy, optimizer, seed=0)
    chosen = layout.choose(mapper, N)
    step, state = chosen.map_workers(step), chosen.replicate(lambda: start)
    for i in range(20):
      state, metrics = step(state, (x[i], y[i]))
      flags.append(bool(np.asarray(metrics['synced'])[0]))
    states.append(jax.device_get(state.params))
  assert flags[:20] == flags[20:]
  assert 1 < sum(flags[:20]) < 20
  jax.tree.map(np.testing.assert_array_equal, *states)


class Varied(nn.Module):
  """Convolutions of several kinds, dropout and batch statistics."""

  @nn.compact
  def __call__(self, x, *, train):
    x = nn.Conv(4, (3, 3), strides=(2, 1), padding=((0, 1), (2, 1)))(x)
    x = nn.Conv(4, (3, 3), kernel_dilation=2, feature_group_count=2)(nn.gelu(x))
    x = nn.BatchNorm(use_running_average=not train)(x)
    x = nn.Dropout(0.5, deterministic=not train)(x)
    return nn.Dense(10)(x.reshape(x.shape[0], -1))


@pytest.mark.slow
def test_workers_in_turn_agree_with_all_at_once():
  runs = [Run(Varied(), mapper) for mapper in ('map', 'vmap')]
  in_turn, at_once = (run.train(5) for run in runs)
  assert in_turn == at_once and 1 <= sum(in_turn) < 5
  for one, other in zip(*(r.state.shared.values() for r in runs), strict=True):
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), one, other
    )


@pytest.mark.slow
def test_in_turn_needs_the_activations_of_one_worker_and_fast_convolutions():
  model, temporary = models.create_model('convnet', 10, num_filters=4), {}
  for mapper in ('map', 'vmap'):
    run = Run(model, mapper)
    batch = next(batches(1, size=256))
    compiled = run.step.lower(run.state, batch).compile()
    memory = compiled.memory_analysis()
    temporary[mapper] = memory.temp_size_in_bytes
    text = compiled.as_text()
    layouts = set(re.findall(r' convolution\(.*dim_labels=(\S+?)[,\s]', text))
    if mapper == 'map':  # XLA has nothing to reorder in the loop, either.
      assert layouts == {'b01f_01io->b01f'}
      assert ' while(' in text
  assert temporary['map'] < temporary['vmap'] / 2


def test_dropout_differs_between_workers_and_between_steps(mapper):
  run = Run(NORMED, mapper, delta=float('inf'), optimizer=optax.sgd(0.0))
  batch = jax.tree.map(lambda x: np.stack([x[0]] * N), next(batches(1)))
  losses = []
  for _ in range(3):
    run.state, metrics = run.step(run.state, batch)
    losses.append(np.asarray(metrics['loss']))
  assert len(np.unique(losses)) == 3 * N


def test_slots_outside_the_mask_do_not_count():
  task = tasks.TASKS['classification']
  batch = jax.tree.map(lambda x: x[0], next(batches(1)))
  variables, state = tasks.init(DENSE, task, batch, jax.random.key(0))
  grad = jax.jit(jax.grad(tasks.train_loss(DENSE, task), has_aux=True))
  key = jax.random.key(1)
  batch['mask'][20:] = False
  masked = grad(variables, state, batch, key)
  short = jax.tree.map(lambda x: x[:20], batch)
  alone = grad(variables, state, short, key)
  assert masked[1][0]['count'] == 20
  for one, other in zip(*map(jax.tree.leaves, (masked, alone)), strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
  'mapper, mesh', [('vmap', {}), slow('map', {}), slow('mesh', {'data': 2})]
)
def test_four_small_batches_make_one_large_one(mapper, mesh):
  sgd, seen = optax.sgd(0.002, momentum=0.9), []
  for accumulate in (1, 4):
    options = {'delta': 0.3, 'optimizer': sgd, 'accumulate': accumulate}
    run = Run(DENSE, mapper, **options, **mesh)
    rows = []
    for batch in batches(12):
      batch['mask'][:, 20:] = batch['mask'][0, ::4] = False  # A whole piece.
      run.state, row = run.step(run.state, batch)
      rows.append(jax.device_get(row))
    seen.append((params(run), jax.tree.map(lambda *x: np.stack(x), *rows)))
  (one, rows), (other, others) = seen
  assert 1 < rows['synced'][:, 0].sum() < 12
  np.testing.assert_array_equal(rows['synced'], others['synced'])
  for name in rows:
    np.testing.assert_allclose(rows[name], others[name], 1e-5, 1e-6)
  for x, y in zip(one, other, strict=True):
    np.testing.assert_allclose(x, y, atol=1e-6)


def test_pieces_are_every_kth_example_and_pass_batch_statistics_on():
  task = tasks.TASKS['classification']
  batch = jax.tree.map(lambda x: x[0], next(batches(1)))
  batch['mask'][:5] = False
  variables, start = tasks.init(NORMED, task, batch, jax.random.key(0))
  loss, key = tasks.train_loss(NORMED, task), jax.random.key(1)
  grads, (metrics, state) = jax.jit(gradient(loss, 2))(
    variables, start, batch, key
  )
  one_piece = jax.jit(jax.grad(loss, has_aux=True))
  expected = jax.tree.map(jnp.zeros_like, variables)
  for i, count in enumerate((13, 14)):
    one, (_, start) = one_piece(
      variables,
      start,
      jax.tree.map(lambda x, i=i: x[i::2], batch),
      jax.random.fold_in(key, i),
    )
    expected = jax.tree.map(
      lambda x, y, share=count / 27: x + share * y, expected, one
    )
  assert metrics['count'] == 27
  for one, other in ((grads, expected), (state, start)):
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), one, other
    )


@pytest.mark.slow
def test_pieces_with_different_numbers_of_tokens_make_the_whole_gradient():
  task, rng = tasks.TASKS['language_modeling'], np.random.default_rng(0)
  inputs, targets = rng.integers(9, size=(2, 8, 5))
  counted = rng.random((8, 5)) < 0.6
  counted[::4] = False  # A whole piece.
  batch = {
    'inputs': inputs,
    'targets': np.where(counted, targets, -1),
    'loss_mask': counted,
    'mask': np.arange(8) < 7,
  }

  start = tasks.init(Bigram(9), task, batch, jax.random.key(0))
  loss = tasks.train_loss(Bigram(9), task)
  one, other = (
    gradient(loss, pieces)(*start, batch, jax.random.key(1))
    for pieces in (1, 4)
  )
  assert np.abs(jax.tree.leaves(one)[0]).max() > 0
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), one, other
  )


@pytest.mark.slow
def test_pieces_need_the_activations_of_one_and_fast_convolutions():
  model, temporary = models.create_model('convnet', 10), []
  task, key = tasks.TASKS['classification'], jax.random.key(0)
  batch = jax.tree.map(lambda x: x[0], next(batches(1, size=512)))
  start = tasks.init(model, task, batch, key)
  for pieces in (1, 8):
    step = jax.jit(gradient(tasks.train_loss(model, task), pieces))
    compiled = step.lower(*start, batch, key).compile()
    temporary.append(compiled.memory_analysis().temp_size_in_bytes)
  layouts = set(
    re.findall(r' convolution\(.*dim_labels=(\S+?)[,\s]', compiled.as_text())
  )
  assert layouts == {'b01f_01io->b01f'}
  assert temporary[1] < temporary[0] / 4


@pytest.mark.parametrize(
  'averager', [ss.mean(), ss.delayed(ss.mean(), 3, keep=0.5, extrapolate=0.5)]
)
def test_parameters_travel_only_inside_the_branch_in_one_buffer(averager):
  run = Run(DENSE, 'pmap', averager=averager)
  compiled = run.step.lower(run.state, next(batches(1))).compile()
  sent = programs.collectives(compiled.as_text())
  total = sum(x[0].size for x in jax.tree.leaves(run.state.params))
  assert [(s.kind, s.elements, s.conditional) for s in sent] == [
    ('all-reduce', 1, False),
    ('all-reduce', total, True),
  ]


def test_a_state_that_comes_back_from_the_host_needs_no_second_program(mapper):
  run = Run(DENSE, mapper)
  run.train(2)
  run.state = run.mapper.place(jax.device_get(run.state))
  run.train(2)
  assert run.traces == 1


@pytest.mark.parametrize(
  ('reported', 'why'),
  [
    ({'step': 1.0}, "reports 'step', which is a built-in column"),
    ({'loss': 1.0}, "reports 'loss', which is a built-in column"),
    ({'norms': jnp.zeros(3)}, "reports 'norms', which is not a number"),
    ({'../x': 1.0}, "'../x': the name must start with a letter"),
    (1.0, 'must return a dict of metrics, got a float'),
  ],
)
def test_a_report_of_a_part_must_be_a_new_column_of_numbers(reported, why):
  averager = dataclasses.replace(ss.mean(), metrics=lambda state: reported)
  run = Run(DENSE, 'vmap', averager=averager)
  with pytest.raises(ConfigError, match=f'^config.sync.averager: .*{why}'):
    run.train(1)


@pytest.mark.parametrize(
  'mapper', [{'mapper': 'vmap'}, {'mapper': 'mesh', 'fsdp': 2}], ids=str
)
def test_the_mean_of_moving_averages_is_the_moving_average_of_the_consensus(
  mapper,
):
  run, synced = Run(DENSE, **mapper, ema_decay=0.3), []
  average = [each.mean(axis=0) for each in params(run)]
  for step, batch in enumerate(batches(8), 1):
    run.state, metrics = run.step(run.state, batch)
    synced.append(bool(np.asarray(metrics['synced'])[0]))
    kept = min(0.3, (1 + step) / (10 + step))
    pairs = zip(average, params(run), strict=True)
    average = [kept * a + (1 - kept) * p.mean(axis=0) for a, p in pairs]
  assert 0 < sum(synced) < 8
  found = jax.tree.leaves(jax.device_get(run.state.scored['params']))
  for one, other in zip(found, average, strict=True):
    np.testing.assert_allclose(one.mean(axis=0), other, rtol=1e-5, atol=1e-7)


class Half(nn.Module):
  """A linear model whose parameters are bfloat16."""

  @nn.compact
  def __call__(self, x, *, train):
    del train
    return nn.Dense(10, param_dtype=jnp.bfloat16)(x.reshape(x.shape[0], -1))


def test_the_moving_average_of_bfloat16_is_float32_and_scored_as_bfloat16():
  run = Run(Half(), 'vmap', ema_decay=0.999)
  run.train(3)
  assert run.traces == 1
  assert {x.dtype.name for x in jax.tree.leaves(run.state.ema)} == {'float32'}
  scored = jax.tree.leaves(run.state.scored['params'])
  assert {x.dtype.name for x in scored} == {'bfloat16'}
