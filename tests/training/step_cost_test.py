"""Cost of a step of each method on a network."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax import methods
from selsync_jax.configs import base, digits
from selsync_jax.islands import probing
from selsync_jax.sync import network
from selsync_jax.sync.traffic import Collective
from selsync_jax.training import step_cost

RUN = methods.Context(steps_per_epoch=40, seed=0)
SHARED = {
  'params': {'w': np.zeros((1000, 1000), np.float32)},
  'model_state': {'mean': np.zeros(1000, np.float32)},
}


def strategy(method, **fields):
  own = base.get_config(method).sync.to_dict()
  return methods.create_strategy(context=RUN, **own | fields)


@pytest.mark.parametrize('method', methods.METHODS)
def test_a_planned_period_matches_the_trigger(method):
  trigger = strategy(method).trigger
  period = trigger.traits.period
  if period is None:
    varying = ('selsync', 'selsync_paper', 'fda')
    assert method in (*varying, 'post_local', 'qsr')
    return

  def step(state, grad):
    _, state = trigger.update(grad, state)
    return state, optax.tree.get(state, 'sync')

  def run(grads):
    return jax.lax.scan(step, trigger.init(grads[0]), grads)[1]

  sync = jax.vmap(run, 1, 1, axis_name=ss.AXIS)(jnp.ones((200, 2)))
  (steps,) = np.nonzero(sync[:, 0])
  np.testing.assert_array_equal(steps + 1, np.arange(period, 201, period))


def test_fewer_steps_may_be_measured_than_lie_between_votes():
  config = digits.get_config()
  config.data.backend, config.model.name = 'numpy', 'perceptron'
  config.sync.vote_every = 50
  assert step_cost.measure(config, 3).seconds > 0


LINKS = network.Network(4, 1e9, 1e-3)
PARAMS, ALL, VOTE = (
  LINKS.seconds(Collective('all_reduce', nbytes))
  for nbytes in (4e6, 4e6 + 4e3, 4)
)
COMPUTE = 2e-3  # Seconds in which a late vote is in flight.


@pytest.mark.parametrize(
  'method, fields, lssr, vote, average',
  [
    ('bsp', {}, 0.0, 0, PARAMS),  # Gradients have only parameters.
    ('selsync', {}, 0.9, VOTE, 0.1 * ALL),
    ('selsync', {'vote_every': 8}, 0.9, VOTE / 8, 0.1 * ALL),
    ('selsync', {'vote_delay': 1}, 0.9, VOTE - COMPUTE, 0.1 * ALL),
    ('selsync', {'aggregate': 'grads'}, 0.9, VOTE, 0.1 * PARAMS),
    ('local_sgd', {'period': 8}, 7 / 8, 0, ALL / 8),
    ('fedavg', {'epochs': 0.25}, 0.9, 0, ALL / 10),  # 40 steps an epoch.
    ('diloco', {'period': 50}, 0.98, 0, ALL / 50),
  ],
)
def test_a_method_waits_for_its_votes_and_its_averages(
  method, fields, lssr, vote, average
):
  cost = step_cost.cost(
    strategy(method, **fields), SHARED, LINKS, 0.9, compute=COMPUTE
  )
  assert cost.lssr == pytest.approx(lssr)
  assert cost.vote == pytest.approx(vote)
  assert cost.average == pytest.approx(average)
  # Bytes on the wire take the wire's time, apart from latency.
  votes = (fields.get('vote_every') and 1 / 8) or float(method == 'selsync')
  latency = 6e-3 * (votes + 1 - lssr)
  on_wire = cost.sent * 8 / LINKS.bandwidth
  hidden = COMPUTE * fields.get('vote_delay', 0)
  assert cost.network == pytest.approx(on_wire + latency - hidden)


@pytest.mark.parametrize('method', methods.METHODS)
def test_a_delay_is_named_where_a_config_may_have_one(method):
  moments = optax.adam(0.1).init(SHARED['params'])
  own = strategy(method), SHARED, LINKS, 0.9, moments
  cost = step_cost.cost(*own, compute=COMPUTE)
  try:
    strategy(method, delay=2)
  except ValueError:
    assert cost.delay is None
  else:
    assert cost.delay > 0


@pytest.mark.parametrize('delay, hidden', [(None, 0.0), (1, 0.5), (4, 1.0)])
def test_islands_compute_an_average_and_agree_that_it_is_complete(
  delay, hidden
):
  """A delay hides messages only."""
  links, work = probing.IslandNetwork(2, 1e9, 5e-4), 8e-3
  travel = links.seconds(Collective('all_reduce', 4e6 + 4e3))
  cost = step_cost.cost(
    strategy('local_sgd', period=8, delay=delay),
    *(SHARED, links, 0.9),
    compute=travel / 2,
    work=work,
  )
  waits = (1 - hidden) * travel + work + links.round_trip
  assert cost.average == pytest.approx(waits / 8)
  assert cost.delay == 2
