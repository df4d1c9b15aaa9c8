"""Losses and metrics against NumPy, example by example."""

import math

import flax.linen as nn
import jax
from jax._src import pretty_printer
import jax.numpy as jnp
import numpy as np
import pytest

from selsync_jax.models import loss_program, tasks, token_weights
from tests.support.perceptron import Bigram, Normalized

CLASSIFICATION = tasks.TASKS['classification']
LANGUAGE_MODELING = tasks.TASKS['language_modeling']


def cross_entropy(logits, target):
  logits = np.float64(logits)
  return math.log(np.sum(np.exp(logits - logits[target])))


def labeled(batch, classes, rng):
  logits = rng.normal(size=(batch, classes)).astype(np.float32)
  labels = rng.integers(classes, size=batch).astype(np.int32)
  return logits, {'label': labels, 'mask': rng.random(batch) < 0.7}


@pytest.mark.parametrize('classes', [3, 5, 20])
def test_top_1_and_top_5_accuracy_count_labels_among_the_best_scores(classes):
  logits, batch = labeled(50, classes, np.random.default_rng(0))
  sums = tasks.metric_sums(
    CLASSIFICATION, jnp.asarray(logits), jax.tree.map(jnp.asarray, batch)
  )
  ranks = [
    sorted(range(classes), key=lambda c: -row[c]).index(label)
    for row, label, unmasked in zip(
      logits, batch['label'], batch['mask'], strict=True
    )
    if unmasked
  ]
  assert sums['count'] == len(ranks) == batch['mask'].sum()
  assert sums['accuracy'] == sum(rank == 0 for rank in ranks)
  assert sums['top5'] == sum(rank < 5 for rank in ranks)
  loss = sum(
    cross_entropy(logits[i], batch['label'][i])
    for i in np.flatnonzero(batch['mask'])
  )
  np.testing.assert_allclose(sums['loss'], loss, rtol=1e-5)


class Unchanged(nn.Module):
  """A model that returns its inputs as scores."""

  def __call__(self, x, train):
    return x


@pytest.mark.parametrize('classes, scored', [(3, False), (5, False), (6, True)])
def test_top5_is_scored_only_where_a_prediction_can_miss(classes, scored):
  logits, batch = labeled(8, classes, np.random.default_rng(0))
  evaluate = tasks.eval_metric_sums(Unchanged(), CLASSIFICATION)
  sums = evaluate({}, {}, batch | {'image': jnp.asarray(logits)})
  assert ('top5' in sums) == scored


def test_a_label_whose_score_is_nan_is_not_correct():
  batch = {'label': jnp.arange(1, 9), 'mask': jnp.ones(8, bool)}
  metrics = CLASSIFICATION.example_metrics(jnp.full((8, 10), jnp.nan), batch)
  assert jnp.sum(metrics['accuracy']) == 0


def text(rng, batch=6, time=7, classes=11):
  return {
    'inputs': rng.integers(classes, size=(batch, time)).astype(np.int32),
    'targets': rng.integers(classes, size=(batch, time)).astype(np.int32),
    'mask': np.array([True, True, False, True, False, True]),
  }


def test_language_modeling_counts_segments_and_averages_over_tokens():
  rng = np.random.default_rng(0)
  batch = text(rng)
  logits = rng.normal(size=(6, 7, 11)).astype(np.float32)
  sums = tasks.metric_sums(
    LANGUAGE_MODELING, jnp.asarray(logits), jax.tree.map(jnp.asarray, batch)
  )
  assert sums['count'] == 4
  tokens = [
    cross_entropy(logits[i, t], batch['targets'][i, t])
    for i in np.flatnonzero(batch['mask'])
    for t in range(7)
  ]
  metrics = tasks.dataset_metrics(LANGUAGE_MODELING, sums)
  assert metrics['loss'] == pytest.approx(np.mean(tokens), rel=1e-5)
  assert metrics['perplexity'] == pytest.approx(
    math.exp(np.mean(tokens)), rel=1e-5
  )
  correct = (logits.argmax(-1) == batch['targets'])[batch['mask']]
  assert metrics['accuracy'] == pytest.approx(correct.mean())


def test_perplexity_is_computed_from_the_mean_loss_of_the_data_set():
  sums = {'count': np.float32(8), 'loss': np.float32(4 * 1.0 + 4 * 3.0)}
  metrics = tasks.dataset_metrics(LANGUAGE_MODELING, sums)
  assert metrics['perplexity'] == pytest.approx(math.e**2)


def test_uniform_scores_have_the_vocabulary_size_as_perplexity():
  batch = jax.tree.map(jnp.asarray, text(np.random.default_rng(0)))
  sums = tasks.metric_sums(LANGUAGE_MODELING, jnp.zeros((6, 7, 11)), batch)
  metrics = tasks.dataset_metrics(LANGUAGE_MODELING, sums)
  assert metrics['perplexity'] == pytest.approx(11)


def test_masked_segments_change_neither_loss_nor_gradient():
  rng = np.random.default_rng(0)
  batch = jax.tree.map(jnp.asarray, text(rng))
  model, key = Bigram(11), jax.random.key(0)
  params, state = tasks.init(model, LANGUAGE_MODELING, batch, key)
  loss = tasks.train_loss(model, LANGUAGE_MODELING)
  value, (metrics, _) = loss(params, state, batch, key)
  assert set(metrics) == {'loss', 'accuracy', 'count'}
  assert metrics['loss'] == value
  short = jax.tree.map(lambda x: x[batch['mask']], batch)
  grad = jax.jit(jax.grad(loss, has_aux=True))
  grads = grad(params, state, batch, key)[0]
  alone = grad(params, state, short, key)[0]
  for one, other in zip(*map(jax.tree.leaves, (grads, alone)), strict=True):
    assert np.abs(one).max() > 0
    np.testing.assert_allclose(one, other, atol=1e-6)


def padded_text(rng):
  """Text with tokens that do not count, including one whole segment."""
  batch = text(rng)
  counted = rng.random(batch['targets'].shape) < 0.6
  counted[3] = False
  targets = np.where(counted, batch['targets'], -100)
  return batch | {'targets': targets, 'loss_mask': counted}


def test_tokens_outside_the_loss_mask_change_neither_scores_nor_gradient():
  rng = np.random.default_rng(0)
  batch = padded_text(rng)
  model, key = Bigram(11), jax.random.key(0)
  params, state = tasks.init(model, LANGUAGE_MODELING, batch, key)
  params = jax.tree.map(lambda x: 3 * x, params)
  counted = batch['loss_mask'] & batch['mask'][:, None]
  one_each = {  # A segment for each token that counts.
    'inputs': batch['inputs'][counted][:, None],
    'targets': batch['targets'][counted][:, None],
    'mask': np.ones(counted.sum(), bool),
  }
  grad = jax.grad(tasks.train_loss(model, LANGUAGE_MODELING), has_aux=True)
  grad = jax.jit(grad)
  grads, (metrics, _) = grad(params, state, batch, key)
  expected, (same, _) = grad(params, state, one_each, key)
  assert metrics['count'] == 4
  assert token_weights.weight(metrics) == counted.sum()
  for name in ('loss', 'accuracy'):
    np.testing.assert_allclose(metrics[name], same[name], rtol=1e-6)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), grads, expected
  )
  evaluate = tasks.eval_metric_sums(model, LANGUAGE_MODELING)
  halves = [
    evaluate(params, state, jax.tree.map(lambda x, i=i: x[i::2], batch))
    for i in range(2)
  ]
  sums = jax.tree.map(np.add, *halves)
  scores = tasks.dataset_metrics(LANGUAGE_MODELING, sums)
  loss = float(same['loss'])
  assert scores['loss'] == pytest.approx(loss, rel=1e-6)
  assert scores['perplexity'] == pytest.approx(math.exp(loss), rel=1e-5)


@pytest.mark.parametrize(
  'made, name', [(text, 'mask'), (padded_text, 'loss_mask')]
)
def test_a_batch_in_which_nothing_counts_has_zero_loss_and_gradient(made, name):
  batch = made(np.random.default_rng(0))
  batch[name] = np.zeros_like(batch[name])
  model, key = Bigram(11), jax.random.key(0)
  params, state = tasks.init(model, LANGUAGE_MODELING, batch, key)
  loss = jax.value_and_grad(
    tasks.train_loss(model, LANGUAGE_MODELING), has_aux=True
  )
  (value, (metrics, _)), grads = jax.jit(loss)(params, state, batch, key)
  assert value == metrics['loss'] == 0
  assert all((g == 0).all() for g in jax.tree.leaves(grads))
  sums = tasks.eval_metric_sums(model, LANGUAGE_MODELING)(params, state, batch)
  scores = tasks.dataset_metrics(LANGUAGE_MODELING, sums)
  assert all(map(math.isnan, scores.values()))


def test_outputs_that_are_not_numbers_have_no_scores():
  batch = {'label': jnp.zeros(8, int), 'mask': jnp.ones(8, bool)}
  logits = jnp.ones((8, 10)).at[3].set(jnp.nan)
  sums = tasks.metric_sums(CLASSIFICATION, logits, batch)
  scores = tasks.dataset_metrics(CLASSIFICATION, sums)
  assert {*scores} == {'loss', 'accuracy', 'top5'}
  assert all(map(math.isnan, scores.values()))


@pytest.mark.parametrize('task', [CLASSIFICATION, LANGUAGE_MODELING])
def test_the_loss_of_bfloat16_scores_is_computed_in_float32(task):
  rng = np.random.default_rng(0)
  batch = text(rng) | {'label': np.zeros(6, np.int32)}
  batch = jax.tree.map(jnp.asarray, batch)
  shape = (6, 11) if task is CLASSIFICATION else (6, 7, 11)
  logits = jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
  one = task.example_metrics(logits, batch)['loss']
  other = task.example_metrics(logits.astype(jnp.float32), batch)['loss']
  np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('momentum', [0.0, 0.9, 0.99])
def test_batch_statistics_are_of_the_batch_alone(momentum):
  model = Normalized(3, momentum=momentum)
  x = np.random.default_rng(0).normal(2.0, 3.0, size=(64, 4))
  batch = {'image': x.astype(np.float32), 'mask': np.ones(64, bool)}
  task = tasks.TASKS['classification']
  params, state = tasks.init(model, task, batch, jax.random.key(0))
  old = jax.tree.map(lambda x: x + 100, state)
  sums, count = tasks.batch_statistics(model, task)(params, old, batch)
  layer = jax.tree.map(np.asarray, params['Dense_0'])
  hidden = x @ layer['kernel'] + layer['bias']
  stats = sums['batch_stats']['BatchNorm_0']
  assert count == 64
  np.testing.assert_allclose(stats['mean'] / 64, hidden.mean(0), rtol=1e-4)
  np.testing.assert_allclose(stats['var'] / 64, hidden.var(0), rtol=1e-3)


class Policy:
  """A policy of `jax.checkpoint` that shows a set of names."""

  def __init__(self, *names):
    self.names = names

  def __call__(self, *_, **__):
    return True

  def __repr__(self):
    return f'frozenset({{{", ".join(map(repr, self.names))}}})'


def test_a_program_has_the_same_digest_in_every_process(monkeypatch):
  """JAX colors programs on a terminal; the order of a set differs by chance."""

  def digest(*names):
    class Model(nn.Module):
      @nn.compact
      def __call__(self, x, train):
        return nn.Dense(2)(jax.checkpoint(jnp.tanh, policy=Policy(*names))(x))

    batch = {'image': np.ones((1, 3), np.float32), 'label': np.zeros(1, int)}
    batch['mask'] = np.ones(1, bool)
    made = Model(), CLASSIFICATION
    params, state = tasks.init_shapes(*made, batch)
    shapes = {'params': params, 'model_state': state}
    return loss_program.digest(*made, shapes, batch)

  plain = digest('one', 'other')
  monkeypatch.setattr(pretty_printer, 'CAN_USE_COLOR', True)
  assert digest('other', 'one') == plain
  assert digest('other', 'two') != plain
