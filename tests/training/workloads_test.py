"""The workloads: their settings, and their smoke runs."""

import importlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from selsync_jax import methods, models, optimizers
from selsync_jax.configs import base
from selsync_jax.runs import records
from selsync_jax.training import setup
from selsync_jax.training.settings import check
from selsync_jax.training.train import train_and_evaluate

METHODS = list(methods.METHODS)
WORKLOADS = [
  'cifar10_resnet101',
  'cifar100_vgg11',
  'imagenet_alexnet',
  'wikitext103_transformer',
  'fashion_mnist',
  'stdlib_gpt',
]


def get_config(workload, argument):
  module = importlib.import_module(f'selsync_jax.configs.{workload}')
  return module.get_config(argument)


@pytest.mark.parametrize(
  'workload, variant',
  [
    *itertools.product(WORKLOADS, ('', ',smoke')),
    ('stdlib_gpt', ',middle'),
    ('stdlib_gpt', ',by_source'),
    ('fashion_mnist', ',noniid'),
  ],
)
def test_a_workload_takes_every_method_and_leaves_its_fields(workload, variant):
  nets = []
  for method in METHODS:
    config = get_config(workload, method + variant)
    assert config.sync.method == method
    default = base.get_config(method)
    assert set(config.sync) == set(default.sync), method
    assert set(config.data) == set(default.data), method
    optimizers.create_optimizer(**config.optimizer)
    nets.append(config.model.to_dict())
  assert all(net == nets[0] for net in nets)
  models.create_model(num_outputs=10, **nets[0])


# From the paper, section `Evaluation`: a worker's batch, the learning rate, and
# its decay, by epochs (or, for the Transformer, by steps).
PAPER = {
  'cifar10_resnet101': (32, 0.1, {109: 0.1, 111: 0.01, 151: 0.001}),
  'cifar100_vgg11': (32, 0.01, {49: 0.01, 51: 0.001, 76: 0.0001}),
  'imagenet_alexnet': (128, 1e-4, {0: 1e-4, 169: 1e-4}),
  'wikitext103_transformer': (20, 2.0, {1999: 2.0, 2000: 1.6, 4000: 1.28}),
}


@pytest.mark.parametrize('workload', PAPER)
def test_batch_and_learning_rate_are_the_papers(workload):
  batch_size, peak, rates = PAPER[workload]
  config = get_config(workload, 'selsync')
  assert (config.workers, config.batch_size) == (16, batch_size)
  assert config.sync.delta == 0.3
  assert config.optimizer.learning_rate == peak
  shape = {k: v for k, v in config.schedule.items() if k != 'warmup_epochs'}
  assert config.schedule.warmup_epochs == 0
  schedule = optimizers.bind_schedule(shape)
  lr = optimizers.with_warmup(schedule, peak, warmup_steps=0, steps=10**6)
  assert [lr(at) for at in rates] == pytest.approx(list(rates.values()))


@pytest.mark.parametrize(
  'workload, decay', [('cifar10_resnet101', 4e-4), ('cifar100_vgg11', 5e-4)]
)
def test_momentum_and_decay_are_the_papers(workload, decay):
  config = get_config(workload, 'bsp').optimizer
  assert (config.name, config.momentum) == ('sgd', 0.9)
  tx = optimizers.create_optimizer(**config)
  params = {'w': jnp.ones((2, 2)), 'b': jnp.ones(2)}
  still = jax.tree.map(jnp.zeros_like, params)
  updates, _ = tx.update(still, tx.init(params), params)
  for update in jax.tree.leaves(updates):
    np.testing.assert_allclose(update, -config.learning_rate * decay, rtol=1e-6)


# Number of steps, and the ratio of the first step's loss to the mean loss of
# the last ten; then the run is stopped, and resumed for some more steps.
FALLS = {
  'cifar10_resnet101': (60, 4.0),
  'cifar100_vgg11': (60, 2.0),
  'imagenet_alexnet': (200, 3.0),
  'wikitext103_transformer': (100, 1.8),
  'stdlib_gpt': (100, 2.0),
}


@pytest.mark.slow
@pytest.mark.usefixtures('short_text')
@pytest.mark.parametrize('workload', FALLS)
def test_a_smoke_run_learns_and_resumes(workload, tmp_path, data_dir):
  steps, factor = FALLS[workload]
  config = get_config(workload, 'selsync,smoke')
  config.data.dir = data_dir
  config.eval.every_epochs = 1e3  # Only at the end.
  config.steps = steps
  train_and_evaluate(config, tmp_path)
  loss = [row['loss'] for row in records.read_metrics(tmp_path)]
  assert np.mean(loss[-10:]) < loss[0] / factor
  config.steps = steps + 10
  summary = train_and_evaluate(config, tmp_path)
  assert summary['steps'] == steps + 10
  more = records.read_metrics(tmp_path)
  assert [row['step'] for row in more] == list(range(1, steps + 11))
  assert [row['loss'] for row in more[:steps]] == loss
  # No fresh start: the first step after the break has about the last loss.
  assert more[steps]['loss'] < 1.5 * np.mean(loss[-10:])
  score = 'perplexity' if config.data.bptt else 'top5'
  assert np.isfinite(summary[f'test_{score}'])


@pytest.mark.slow
@pytest.mark.parametrize('variant', ['smoke', 'middle', 'by_source'])
def test_a_small_language_model_has_a_learning_curve(variant):
  config = get_config('stdlib_gpt', f'selsync,{variant}')
  every = setup.create_setup(check(config)).problem.evaluate_every
  assert 5 <= config.steps / every <= 10
