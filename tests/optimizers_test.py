"""Optimizers and learning-rate schedules, against their definitions."""

import inspect
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib
import pytest

from selsync_jax import optimizers
from selsync_jax.config import ConfigError
from selsync_jax.configs import digits
from selsync_jax.training.problem import create_problem
from selsync_jax.training.settings import check
from tests.support.lines import raises


def rates(steps, warmup_steps, **fields):
  schedule = optimizers.with_warmup(
    optimizers.bind_schedule(fields),
    2.0,
    warmup_steps=warmup_steps,
    steps=steps,
  )
  return np.array([schedule(step) for step in range(steps)])


def test_milestones_multiply_the_learning_rate_from_their_step_on():
  lr = rates(
    30, name='milestones', warmup_steps=0, milestones=[10, 20, 20], factor=0.1
  )
  expected = np.repeat([2.0, 0.2, 0.002], 10)
  np.testing.assert_allclose(lr, expected, rtol=1e-6)


def test_milestones_count_from_the_start_of_the_run_despite_warmup():
  lr = rates(
    30, name='milestones', warmup_steps=5, milestones=[10, 20], factor=0.5
  )
  np.testing.assert_allclose(lr[:5], 2.0 * np.arange(5) / 5, rtol=1e-6)
  expected = [2.0] * 5 + [1.0] * 10 + [0.5] * 10
  np.testing.assert_allclose(lr[5:], expected, rtol=1e-6)


def test_a_staircase_multiplies_the_learning_rate_every_period():
  lr = rates(35, name='staircase', warmup_steps=0, period=10, factor=0.8)
  expected = [2.0 * 0.8 ** (step // 10) for step in range(35)]
  np.testing.assert_allclose(lr, expected, rtol=1e-5)


@pytest.mark.parametrize(
  'fields, expected',
  [
    (dict(name='cosine', alpha=0.1), lambda t: 0.55 + 0.45 * np.cos(np.pi * t)),
    (
      dict(name='cosine', exponent=2.0),
      lambda t: (0.5 + 0.5 * np.cos(np.pi * t)) ** 2,
    ),
    (dict(name='polynomial'), lambda t: 1 - t),
    (
      dict(name='polynomial', alpha=0.2, power=2.0),
      lambda t: 0.2 + 0.8 * (1 - t) ** 2,
    ),
    (dict(name='exponential', alpha=0.01), lambda t: 0.01**t),
    (dict(name='stable'), lambda t: np.minimum(1, (1 - t) / 0.2)),
    (
      dict(name='stable', decay=0.5, alpha=0.1),
      lambda t: np.minimum(1, 0.1 + 0.9 * (1 - t) / 0.5),
    ),
  ],
)
def test_a_schedule_ends_with_the_run_and_counts_from_the_warmup(
  fields, expected
):
  lr = rates(50, warmup_steps=10, **fields)
  after = 2.0 * expected(np.arange(40) / 40)
  np.testing.assert_allclose(lr[10:], after, rtol=1e-5, atol=1e-7)


def test_milestones_in_a_config_are_in_epochs(data_dir):
  config = digits.get_config()
  config.data.dir = data_dir
  config.schedule.update(
    name='milestones', warmup_epochs=0.0, milestones=(1.5, 2.0), factor=0.1
  )
  lr = create_problem(check(config)).learning_rate  # 10 steps per epoch.
  assert [lr(step) for step in (14, 15, 19, 20)] == pytest.approx(
    [0.1, 0.01, 0.01, 0.001]
  )


def params():
  rng = np.random.default_rng(0)
  return {
    'kernel': jnp.asarray(rng.normal(size=(3, 4)), jnp.float32),
    'bias': jnp.asarray(rng.normal(size=4), jnp.float32),
  }


def updated(tx, steps, grads):
  tree = params()
  state = tx.init(tree)
  for _ in range(steps):
    updates, state = tx.update(grads, state, tree)
    tree = optax.apply_updates(tree, updates)
  return tree


@pytest.mark.parametrize('name', ['muon', 'prodigy', 'schedule_free_adamw'])
def test_an_optimizer_of_contrib_has_our_arguments_too(name):
  grads = jax.tree.map(lambda p: 3 * p, params())
  ours = optimizers.create_optimizer(name, 0.1, clip_norm=1.0)
  clip = optax.clip_by_global_norm(1.0)
  theirs = optax.chain(clip, getattr(contrib, name)(0.1))
  jax.tree.map(
    np.testing.assert_array_equal,
    updated(ours, 3, grads),
    updated(theirs, 3, grads),
  )


def test_prodigy_survives_a_warmup_from_0_as_the_docs_say():
  grads = jax.tree.map(lambda p: 3 * p, params())
  warmup = optax.linear_schedule(0.0, 1.0, 4)
  for safe in (False, True):
    tx = optimizers.create_optimizer('prodigy', warmup, safeguard_warmup=safe)
    assert np.isfinite(updated(tx, 6, grads)['kernel']).all() == safe


def test_weight_decay_of_sgd_is_added_to_the_gradient_before_momentum():
  tx = optimizers.create_optimizer('sgd', 0.1, momentum=0.9, weight_decay=0.01)
  grads = jax.tree.map(jnp.ones_like, params())
  result = updated(tx, 5, grads)
  for name, start in params().items():
    w, velocity = np.float64(start), 0.0
    for _ in range(5):
      velocity = 0.9 * velocity + (1.0 + 0.01 * w)
      w = w - 0.1 * velocity
    np.testing.assert_allclose(result[name], w, rtol=1e-5)


@pytest.mark.parametrize('name', ['sgd', 'adamw'])
def test_weight_decay_of_matrices_does_not_apply_to_biases(name):
  zeros = jax.tree.map(jnp.zeros_like, params())
  for decayed in ('all', 'matrices'):
    tx = optimizers.create_optimizer(
      name, 0.1, weight_decay=0.5, decayed=decayed
    )
    after = updated(tx, 1, zeros)
    np.testing.assert_allclose(
      after['kernel'], 0.95 * params()['kernel'], rtol=1e-6
    )
    share = 0.95 if decayed == 'all' else 1.0
    np.testing.assert_allclose(
      after['bias'], share * params()['bias'], rtol=1e-6
    )


MASKED = ['adadelta', 'adamaxw', 'adamw', 'adan', 'lamb', 'lars', 'lion']


@pytest.mark.parametrize('name', MASKED)
def test_optimizers_that_decay_by_themselves_spare_biases_too(name):
  def shrinks(decayed):
    options = {'weight_decay': 0.5, 'decayed': decayed}
    tx = optimizers.create_optimizer(name, 0.1, **options)
    after = updated(tx, 1, jax.tree.map(jnp.zeros_like, params()))
    return {k: bool(jnp.any(after[k] != v)) for k, v in params().items()}

  assert shrinks('all') == {'kernel': True, 'bias': True}
  assert shrinks('matrices') == {'kernel': True, 'bias': False}


def test_parameters_whose_first_group_has_scale_0_are_frozen():
  groups = (
    {'parameters': 'head', 'scale': 2.0},
    {'parameters': '^params/(base|head)', 'scale': 0.0},
    {'parameters': 'bias'},
  )
  fields = {'name': 'sgd', 'learning_rate': 0.1}
  sgd = optimizers.bind_optimizer(fields | {'groups': groups})
  names = ['base/kernel', 'base/bias', 'head/bias', 'lora/bias']
  assert [*filter(optimizers.is_frozen(sgd), names)] == names[:2]
  plain = optimizers.bind_optimizer(fields)
  assert not any(map(optimizers.is_frozen(plain), names))


def test_a_group_of_parameters_has_arguments_of_its_own():
  tx = optimizers.create_optimizer(
    'adamw',
    0.1,
    weight_decay=0.5,
    clip_norm=1.0,
    groups=(
      {'parameters': '^params/b', 'weight_decay': 0.0, 'b1': 0.5, 'scale': 3.0},
      {'parameters': 'bias|embedding', 'scale': 0.0},
    ),
  )
  grads, tree = jax.tree.map(jnp.sin, params()), params()
  tree['table'] = {'embedding': params()['bias']}
  grads['table'] = {'embedding': jnp.full(4, 9.0)}
  clipped, _ = optax.clip_by_global_norm(1.0).update(grads, None)
  state, before = tx.init(tree), tree
  for _ in range(3):
    updates, state = tx.update(grads, state, tree)
    tree = optax.apply_updates(tree, updates)
  for name, alone in {
    'kernel': optax.adamw(0.1, weight_decay=0.5),
    'bias': optax.adamw(0.3, b1=0.5, weight_decay=0.0),
  }.items():
    x, state = before[name], alone.init(before[name])
    for _ in range(3):
      update, state = alone.update(clipped[name], state, x)
      x = x + update
    np.testing.assert_allclose(tree[name], x, rtol=1e-6)
  table = tree['table']['embedding']
  np.testing.assert_array_equal(table, before['table']['embedding'])


@pytest.mark.parametrize(
  'group, line',
  [
    ('bias', ".groups[0]='bias': must be a mapping of fields"),
    ({'scale': 0.0}, '.groups[0]: group needs parameters'),
    ({'parameters': 'b', 'scale': -1.0}, '.groups[0].scale=-1.0: must be at'),
    ({'parameters': 'b', 'b1': 2.0}, '.groups[0].b1=2.0: must be in [0, 1)'),
    ({'parameters': 'b', 'b4': 2.0}, '.groups[0].b4=2.0: adamw has no b4;'),
    ({'parameters': 'b', 'learning_rate': 1.0}, '.groups[0].learning_rate=1.0'),
    ({'parameters': '('}, ".groups[0]: parameters='(': missing"),
    ({'parameters': 'x'}, ': it cannot train this model: groups[0]'),
  ],
)
def test_a_group_is_checked_before_the_run(group, line):
  config = digits.get_config()
  config.data.backend = 'numpy'
  config.optimizer.update(name='adamw', momentum=None, groups=(group,))
  line = re.escape('config.optimizer' + line)
  with pytest.raises(ValueError, match=f'^{line}'):
    create_problem(check(config))


def test_an_optimizer_without_a_mask_decays_all_parameters():
  optimizers.create_optimizer('novograd', 0.1, weight_decay=0.5)
  optimizers.create_optimizer('novograd', 0.1, decayed='matrices')  # Of none.
  with pytest.raises(ValueError, match=r"decayed='matrices': must be all; "):
    optimizers.create_optimizer(
      'novograd', 0.1, weight_decay=0.5, decayed='matrices'
    )


def test_an_unknown_choice_of_decayed_parameters_is_named():
  with pytest.raises(
    ValueError, match="decayed='biases': must be all or matrices"
  ):
    optimizers.create_optimizer('adamw', 0.1, decayed='biases')


def test_an_optimizer_that_needs_more_than_the_gradient_is_refused_by_name():
  params = {'kernel': jnp.ones((3, 4)), 'bias': jnp.ones(4)}

  def needs_more(make):
    optimizer = make(learning_rate=0.1)
    state = jax.eval_shape(optimizer.init, params)
    try:
      jax.eval_shape(optimizer.update, params, state, params)
    except (TypeError, ValueError):
      return True
    return False

  def asks(make):
    with warnings.catch_warnings(action='ignore'):  # About moved optimizers.
      return needs_more(make)

  every = {}
  for module in (contrib, optax):
    for name, make in inspect.getmembers(module, inspect.isfunction):
      needed = {
        p.name
        for p in inspect.signature(make).parameters.values()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD
      }
      takes_rate = 'learning_rate' in inspect.signature(make).parameters
      if takes_rate and needed <= {'learning_rate'}:
        every[name] = make
  assert len(every) > 40
  refused = {name for name, make in every.items() if asks(make)}
  assert refused == {*optimizers.NEEDS_MORE}
  for name in refused:
    with raises(ConfigError, f'config.x.name: {name!r} needs ...'):
      optimizers.bind_optimizer({'name': name, 'learning_rate': 0.1}, 'x')
