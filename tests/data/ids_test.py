"""Token ids outside the vocabulary, and tokens that the loss leaves out."""

import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.config import ConfigError, RunError
from selsync_jax.configs import base
from selsync_jax.data import from_arrays, from_grain
from selsync_jax.runs import history
from selsync_jax.training.problem import create_problem
from selsync_jax.training.settings import check
from selsync_jax.training.train import train_and_evaluate
from tests.support.lines import raises
from tests.support.perceptron import Bigram

VOCABULARY, TIME = 11, 5


@pytest.fixture(autouse=True)
def register():
  ss.register_model(Bigram)


def tokens(count, seed):
  rng = np.random.default_rng(seed)
  text = rng.integers(VOCABULARY, size=(count, TIME + 1))
  return {'inputs': text[:, :-1], 'targets': text[:, 1:]}


def splits():
  counts = {'train': 200, 'validation': 30, 'test': 40}
  return {name: tokens(count, count) for name, count in counts.items()}


def with_targets(split, value, **more):
  """The splits, with a value as the last target of one of them."""
  found = splits()
  found[split]['targets'][-1, -1] = value
  for each in found.values():
    each |= {name: make(each['targets']) for name, make in more.items()}
  return found


def opened(make=from_arrays, model='Bigram', **options):
  """The data of a run on a data set that a user has registered."""

  @ss.register_dataset
  def mine():
    given = {'task': 'language_modeling', 'num_classes': VOCABULARY} | options
    return make(**given)

  return create_problem(check(config(model=model))).data


def config(name='mine', model='Bigram'):
  found = base.get_config('bsp')
  found.update(workers=2, batch_size=4, mapper='vmap', steps=5)
  found.data.name, found.model.name = name, model
  return found


def inputs_of_minus_one():
  found = splits()
  found['train']['inputs'][7, 2] = -1
  return found


def stacked():
  """The splits as one array of tokens each, of which one is padding."""
  found = {
    name: {'tokens': np.concatenate([x['inputs'], x['targets']], axis=1)}
    for name, x in splits().items()
  }
  found['test']['tokens'][-1, -1] = -1
  return found


def halves(batch):
  found = batch['tokens']
  return {'inputs': found[:, :TIME], 'targets': found[:, TIME:]}


def by_grain(train, validation, test, **options):
  grain = pytest.importorskip('grain')

  def source(split):
    size = len(split['inputs'])
    rows = ({k: v[i] for k, v in split.items()} for i in range(size))
    return grain.MapDataset.source([*rows])

  each = {'train': train, 'validation': validation, 'test': test}
  return from_grain(
    **{k: source(split) for k, split in each.items()}, **options
  )


IN_RANGE = 'must be from 0 to 10, below num_classes=11'
LEFT_OUT = f'{IN_RANGE}; an array loss_mask leaves tokens out'
WRONG = {
  'padding': (with_targets('train', -1), f'train: targets has -1: {LEFT_OUT}'),
  'ignored': (
    with_targets('test', -100),
    f'test: targets has -100: {LEFT_OUT}',
  ),
  'vocabulary': (
    with_targets('validation', VOCABULARY),
    f'validation: targets has 11: {LEFT_OUT}',
  ),
  'counted': (
    with_targets('train', -1, loss_mask=np.ones_like),
    f'train: targets has -1: {LEFT_OUT}',
  ),
  'inputs': (
    inputs_of_minus_one() | {'model': 'decoder'},
    f'train: inputs has -1: {IN_RANGE}',
  ),
  'transform': (
    stacked() | {'transform': halves},
    f'test: targets has -1: {LEFT_OUT}',
  ),
  'grain': (
    with_targets('train', -1) | {'make': by_grain},
    f'train: targets has -1: {LEFT_OUT}',
  ),
  'shape': (
    with_targets('train', 0, loss_mask=lambda x: x[:, :1] * 0),
    'train: loss_mask has shape (200, 1), and targets (200, 5): must be equal',
  ),
  'mask': (
    with_targets('train', 0, loss_mask=lambda x: x * 0 + 0.5),
    'train: loss_mask must be 1 where a token counts, or 0',
  ),
}


@pytest.mark.parametrize('case', WRONG)
def test_an_id_outside_the_vocabulary_is_refused_before_training(case):
  given, line = WRONG[case]
  with raises(ConfigError, f'config.data: {line}'):
    opened(**given)


def test_a_custom_task_names_the_arrays_that_it_indexes_with():
  @ss.register_task('inputs', ids=['words'])
  def own(outputs, batch):
    raise AssertionError

  given = {
    name: {'inputs': np.ones((20, 3)), 'words': np.arange(20)}
    for name in ('train', 'validation', 'test')
  }
  with pytest.raises(ConfigError, match=f'train: words has 11: {LEFT_OUT}'):
    opened(**given, task='own')


def test_a_custom_model_may_read_more_ids_than_it_scores():
  given = splits()
  given['train']['inputs'][0, 0] = VOCABULARY  # It marks the beginning.
  opened(**given)

  @ss.register_task('inputs', ids=['inputs', 'targets'])
  def own(outputs, batch):
    raise AssertionError

  with pytest.raises(ConfigError, match=f'inputs has 11: {IN_RANGE}'):
    opened(**given, task='own')


def test_an_id_that_was_not_among_the_samples_is_refused_when_it_is_read():
  given = stacked()
  given['train']['tokens'][102, 7] = 50
  given['test']['tokens'][-1, -1] = 0
  data = opened(**given, transform=halves)
  with pytest.raises(RunError, match=r'^config\.data: train: targets has 50'):
    list(data.batches([0, 1], 0, data.assignment.steps_per_epoch))


def test_padding_that_a_mask_leaves_out_changes_no_score(tmp_path):
  """Segments of 5 tokens train as they do when they are padded to 8."""

  def padded(split):
    more = {'inputs': 0, 'targets': -100, 'loss_mask': 0}
    split = split | {'loss_mask': np.ones_like(split['targets'])}
    return {
      name: np.pad(array, ((0, 0), (0, 3)), constant_values=more[name])
      for name, array in split.items()
    }

  options = {'task': 'language_modeling', 'num_classes': VOCABULARY}

  @ss.register_dataset
  def whole():
    return from_arrays(**splits(), **options)

  @ss.register_dataset
  def longer():
    each = {name: padded(split) for name, split in splits().items()}
    return from_arrays(**each, **options)

  runs = []
  for name in ('whole', 'longer'):
    train_and_evaluate(config(name), tmp_path / name)
    runs.append(history.read(tmp_path / name))
  for field in ('loss', 'accuracy', 'validation_perplexity', 'samples'):
    one, other = (run.columns[field] for run in runs)
    assert np.isfinite(one).any()
    np.testing.assert_allclose(one, other, rtol=1e-5)
