"""Forty random compositions by flags: each is right, or refused in one line."""

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from selsync_jax import methods
from selsync_jax.commands import config_file
from selsync_jax.config import config_errors, ConfigError
from selsync_jax.devices import mappers
from selsync_jax.sync import traffic
from selsync_jax.training.step import init_state, train_step
from tests.support import sent
from tests.support.marks import slow

N, STEPS = 4, 3
CONTEXT = methods.Context(steps_per_epoch=8, seed=0)
SGD = {'name': 'sgd', 'learning_rate': 0.5}
ADAM = {'name': 'adam', 'learning_rate': 0.01}

# By part, the fields to set: values to draw from, or a kind of part.
FIELDS: dict[str, dict[str, Any]] = {
  'every': {'k': (1, 2)},
  'post_local': {'switch': (0, 2), 'k': (1, 3)},
  'qsr': {'alpha': (0.1,), 'h_min': (2,)},
  'selsync': {'delta': (0.0, 0.3), 'vote_every': (1, 2), 'vote_delay': (0, 1)},
  'fda': {'theta': (0.0, 0.1)},
  'budgeted': {'trigger': 'trigger', 'lssr': (0.3, 0.9)},
  'any_of': {'a': 'trigger', 'b': 'trigger'},
  'max_interval': {'k': (2, 8)},
  'min_interval': {'k': (2, 20), 'trigger': 'trigger'},
  'mean': {'wire': 'wire'},
  'subset_mean': {'fraction': (0.5,), 'wire': 'wire'},
  'outer': {'optimizer': (SGD, ADAM), 'averager': 'averager'},
  'eager_outer': {'optimizer': (SGD, ADAM), 'wire': 'wire'},
  'groups': {'size': (2,)},
  'fragments': {'k': (1, 3), 'averager': 'averager'},
  'robust_mean': {'wire': 'wire'},
  'centered_clip': {'radius': (1.0, 3.0), 'iterations': (1, 2)},
  'trimmed_mean': {'drop': (0.25, 0.4)},
  'interleave': {'k': (1, 2), 'averager': 'averager', 'between': 'averager'},
  'at_sync': {'reducer': 'reducer'},
  'clipped': {'norm': (1.0,), 'reducer': 'reducer'},
  'top_k': {'density': (0.2,)},
  'micro': {'density': (0.2,)},
  'exdyna': {'density': (0.2,)},
  'power_sgd': {'rank': (2,)},
  'proximal': {'mu': (0.1,)},
  'delayed': {'steps': (1, 2), 'keep': (0.0, 1.0), 'mix': (0.0, 0.5)},
}


def flags(rng, kind, path, depth=0):
  """The flags of a random part, and of the parts inside it."""

  def holds(name):
    return any(isinstance(values, str) for values in own(name).values())

  def own(name):  # Policies share averagers' names and have no fields.
    return {} if kind == 'optimizer_state' else FIELDS.get(name, {})

  names = [
    n
    for n in methods.PARTS[kind]
    if kind == 'wire' or depth < 2 or not holds(n)
  ]
  name = rng.choice(names)
  if kind != 'delay':
    yield f'--config.{path}={name}'
  for field, values in own(name).items():
    place = f'{path}.{field}'
    if isinstance(values, str):
      yield from flags(rng, values, place, depth + 1)
    elif isinstance(value := rng.choice(values), dict):
      yield from (f'--config.{place}.{k}={v}' for k, v in value.items())
    else:
      yield f'--config.{place}={value}'


def composition(seed):
  """A preset and flags that replace some of its parts."""
  rng = random.Random(seed)
  method = rng.choice(('local_sgd', 'local_sgd', 'bsp', 'selsync', 'diloco'))
  kinds = [kind for kind in methods.PARTS if rng.random() < 0.4]
  return method, [f for kind in kinds for f in flags(rng, kind, f'sync.{kind}')]


def loss(params, model_state, batch, key):
  del key
  x, y = batch
  error = jnp.mean((jnp.tanh(x @ params['w']) @ params['v'] - y) ** 2)
  return error, ({'loss': error}, {'mean': jnp.mean(x, axis=0)})


PARAMS = {'w': jnp.linspace(-1.0, 1.0, 35).reshape(5, 7), 'v': jnp.ones(7)}
OPTIMIZER = optax.sgd(0.05, momentum=0.5)


def start(method, given):
  """The strategy and the state before the first step, made like in a run."""
  config = config_file.load(f'configs/digits.py:{method}', given)
  with config_errors('sync'):
    strategy = methods.create_strategy(context=CONTEXT, **config.sync.to_dict())
    strategy.averager.check(N)
    state = init_state(PARAMS, {'mean': jnp.zeros(5)}, strategy, OPTIMIZER)
    sends = strategy.sends(state.shared, N, state.opt_state)
    for budget in strategy.trigger.traits.budgets:
      budget(traffic.traffic(sends, PARAMS, N))
  return strategy, state


@pytest.mark.parametrize(
  'seed', [*range(10), *(slow(i) for i in range(10, 40))]
)
def test_a_random_composition_is_right_or_refused_in_one_line(seed):
  method, given = composition(seed)
  try:
    strategy, state = start(method, given)
  except ConfigError as error:
    line = str(error)
    assert line.removeprefix('--').startswith('config.sync')
    assert '\n' not in line
    return
  rng = np.random.default_rng(0)
  x = rng.normal(size=(STEPS, N, 16, 5)).astype(np.float32)
  y = np.tanh(x.sum(-1))
  worker = train_step(loss, strategy, OPTIMIZER, seed=0)
  assert not sent.difference(worker, strategy, state, (x[0, 0], y[0, 0]), N)
  mapper = mappers.Vmap(N)
  step, states = mapper.map_workers(worker), mapper.replicate(lambda: state)
  for batch in zip(x, y, strict=True):
    states, metrics = jax.device_get(step(states, batch))
    assert np.isfinite(metrics['loss']).all()
    assert len({*metrics['synced'].tolist()}) == 1
    if metrics['synced'][0] and strategy.averager.agrees:
      for leaf in jax.tree.leaves(strategy.averaged(states.shared)):
        assert (leaf == leaf[0]).all()


def test_some_of_them_train_and_some_are_refused():
  refused = 0
  for seed in range(40):
    try:
      start(*composition(seed))
    except ConfigError:
      refused += 1
  assert 10 <= refused <= 30
