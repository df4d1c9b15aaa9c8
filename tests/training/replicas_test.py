"""Reasons that stop a run: gradients that are not finite, unequal replicas."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax import methods
from selsync_jax.config import RunError
from selsync_jax.data.sources import DATASETS
from selsync_jax.devices import mappers
from selsync_jax.training.step import TrainState
from tests.support import live_runs
from tests.support.marks import slow
from tests.support.short_runs import rows, run, STEPS


@pytest.fixture
def poisoned(monkeypatch):
  """Digits with one training image that is not a number."""
  create = DATASETS['digits']

  def poisoned_digits(**fields):
    dataset = create(**fields)
    train = dataset.splits['train']
    image = train['image'].astype(np.float32)
    image[7] = np.nan
    splits = dataset.splits | {'train': train | {'image': image}}
    return dataclasses.replace(dataset, splits=splits)

  monkeypatch.setitem(DATASETS, 'digits', poisoned_digits)


@pytest.mark.usefixtures('poisoned')
def test_stop_names_step_worker_and_the_last_good_checkpoint(tmp_path):
  with pytest.raises(RunError) as error:
    run(tmp_path, steps=20, checkpoint__every=2)
  step = len(rows(tmp_path)) + 1
  words = str(error.value)
  assert words.startswith(f'step {step}: the gradient of worker ')
  good = (step - 1) // 2 * 2
  assert words.endswith(
    f'last good checkpoint: {f"step {good}" if good else "none"}'
  )


@pytest.mark.usefixtures('poisoned')
@pytest.mark.parametrize(
  'method, fields',
  [
    ('selsync', {}),
    *(
      slow(method, fields)
      for method, fields in (
        *(('bsp', {}), ('fedavg', {}), ('diloco', {})),
        ('local_sgd', {'sync__delay': {'steps': 3, 'keep': 0.5}}),
      )
    ),
  ],
)
def test_skip_counts_the_update_and_keeps_it_from_all_workers(
  method, fields, tmp_path
):
  # An epoch is a little shorter than ten steps: the image comes a fifth time
  # if it is early in the fifth epoch.
  summary = run(
    tmp_path, method, on_nonfinite='skip', **fields, steps=40, seed=1
  )
  assert summary['skipped'] in (4, 5)
  assert np.isfinite(summary['test_loss'])
  state = live_runs.arrays(tmp_path, 40)
  assert all(np.isfinite(x).all() for name, x in state if 'params' in name)
  if method == 'selsync':  # No step with such a gradient synchronizes.
    skipped = [
      late['synced']
      for early, late in itertools.pairwise(rows(tmp_path))
      if late['skipped'] > early['skipped']
    ]
    assert skipped and not any(skipped)


def flip_a_bit(params):
  """Flips a bit of worker 2, in the sign of the first layer's bias."""
  bias = params['Dense_0']['bias']
  second = jax.lax.axis_index(ss.AXIS) == 2
  flipped = {'bias': jnp.where(second, -bias, bias)}
  return params | {'Dense_0': params['Dense_0'] | flipped}


def test_a_bit_flipped_after_the_average_stops_the_run(monkeypatch, tmp_path):
  def flipping(context):
    del context
    mean = ss.mean()

    def apply(shared, state):
      shared, state = mean.apply(shared, state)
      return shared | {'params': flip_a_bit(shared['params'])}, state

    return ss.Strategy(ss.every(2), ss.Averager(mean.init, apply))

  monkeypatch.setitem(methods.METHODS, 'bsp', flipping)
  with pytest.raises(RunError) as error:
    run(tmp_path, 'bsp', check_replicas_every=3)
  assert str(error.value) == (
    'step 6: parameters that should be equal on all workers differ in '
    'Dense_0/bias; last good checkpoint: none'
  )


@pytest.mark.parametrize('method', ['selsync', 'bsp'])
def test_a_worker_that_starts_from_other_weights_stops_the_run(
  method, monkeypatch, tmp_path
):
  stack = mappers.Vmap.stack

  def unequal(self, tree):
    tree = jax.tree.map(np.array, stack(self, tree))
    if isinstance(tree, TrainState):
      tree.params['Dense_1']['bias'][3] += 1e-7
    return tree

  monkeypatch.setattr(mappers.Vmap, 'stack', unequal)
  with pytest.raises(RunError) as error:
    run(tmp_path, method)
  assert str(error.value) == (
    'step 0: parameters that should be equal on all workers differ in '
    'Dense_1/bias'
  )


@pytest.mark.slow
def test_gradient_aggregation_lets_replicas_differ(tmp_path):
  run(tmp_path, sync__aggregate='grads', check_replicas_every=1)
  state = dict(live_runs.arrays(tmp_path, STEPS))
  kernel = state["['params']['Dense_0']['kernel']"]
  assert (kernel[0] != kernel[1]).any()


@pytest.mark.slow
def test_a_worker_that_skips_again_and_again_stops_the_run(tmp_path):
  with pytest.raises(RunError) as error:
    run(
      tmp_path,
      steps=60,
      on_nonfinite='skip',
      max_skips=5,
      optimizer__learning_rate=1e38,
      optimizer__clip_norm=None,
    )
  skipped = [row['skipped'] for row in rows(tmp_path)]
  assert len(skipped) < 60
  step = len(skipped) + 1
  assert str(error.value).startswith(f'step {step}: the gradient of worker ')
  assert 'is not finite for the 6th step in a row; see max_skips' in str(
    error.value
  )
