"""Triggers whose period changes in the course of training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax import optimizers
from selsync_jax.sync.triggers import warmup_steps
from tests.support.trajectory import run

STEPS = 500


def syncs(trigger, steps):
  """The steps, from 1, at which two workers synchronize."""
  states = run(trigger, jnp.ones((steps, 2, 1)))
  return [i for i, state in enumerate(states, 1) if state.sync.all()]


def schedule(name, warmup, **fields):
  bound = optimizers.bind_schedule({'name': name, **fields})
  return optimizers.with_warmup(bound, 0.1, warmup_steps=warmup, steps=STEPS)


SCHEDULES = {
  'cosine': schedule('cosine', 0),
  'cosine after warmup': schedule('cosine', 53),
  'steps after warmup': schedule(
    'milestones', 20, milestones=(100, 300), factor=0.5
  ),
  'constant': schedule('constant', 0),
}


@pytest.mark.parametrize('name', SCHEDULES)
@pytest.mark.parametrize(
  'alpha, h_min, first', [(0.2, 2, 4), (0.07, 4, 4), (0.3, 1, 9)]
)
def test_qsr_has_the_papers_periods(name, alpha, h_min, first):
  rates = np.asarray(jax.vmap(SCHEDULES[name])(jnp.arange(STEPS)))
  warmup = int(np.argmax(rates))
  expected, t = [], 0
  while t < STEPS:  # The paper's Algorithm 2.
    rate = float(rates[max(t, warmup)])
    quadratic = np.floor(np.square(alpha / rate) * (1 + 1e-6)) if rate else 1e9
    t += int(max(h_min, quadratic))
    expected.append(t)
  found = syncs(ss.qsr(alpha, h_min, SCHEDULES[name]), STEPS)
  assert found == [t for t in expected if t <= STEPS]
  periods = np.diff([0, *found])
  assert (periods[:-1] <= periods[1:]).all()
  assert periods[0] == first


def test_qsr_never_overflows_where_the_rate_is_zero():
  assert syncs(ss.qsr(0.1, 3, lambda step: 0.1 * (step < 6)), 2000) == [3, 6]


def test_a_warmup_ends_at_the_first_peak():
  assert list(map(warmup_steps, SCHEDULES.values())) == [0, 53, 20, 0]


def test_a_warmup_that_does_not_rise_at_once_ends_at_the_first_fall():
  waits = optax.join_schedules(
    [optax.constant_schedule(0.0), SCHEDULES['cosine after warmup']], [2]
  )
  assert warmup_steps(waits) == 55

  def stairs(step):
    return jnp.minimum(step // 10, 5) * 0.02 * 0.999 ** (step // 80)

  assert warmup_steps(stairs) == 50
  assert syncs(ss.qsr(0.2, 2, stairs), 20) == [4, 8, 12, 16, 20]


def test_a_schedule_that_only_rises_has_no_warmup():
  assert warmup_steps(lambda step: step / 10) == 0
  assert warmup_steps(optax.constant_schedule(0.1)) == 0


def test_post_local_averages_every_step_then_every_kth():
  assert syncs(ss.post_local(5, 4), 20) == [1, 2, 3, 4, 5, 9, 13, 17]
  assert syncs(ss.post_local(0, 4), 20) == syncs(ss.every(4), 20)


def test_a_round_starts_after_any_synchronization():
  trigger = ss.any_of(ss.post_local(0, 4), ss.every(6))
  assert syncs(trigger, 20) == [4, 6, 10, 12, 16, 18]
