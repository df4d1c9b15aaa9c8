"""Layouts of a cluster: which there are, and what each costs."""

import collections
import itertools
import math

import jax
import pytest

from selsync_jax.configs import digits
from selsync_jax.devices.layout import Layout
from selsync_jax.sync.traffic import nbytes
from selsync_jax.training import layouts
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from tests.support import programs

FAST, SLOW = 1e11, 1e8
CLUSTER = layouts.Cluster(4, 2, SLOW, FAST, latency=1e-4)
EXAMPLES = 64


def made(method='local_sgd', **sync):
  config = digits.get_config(method)
  config.data.backend, config.batch_size = 'numpy', EXAMPLES // 4
  config.model.update(name='perceptron', num_filters=2048)
  config.sync.update(sync)
  return create_setup(check(config))


@pytest.mark.parametrize('hosts, devices', [(4, 8), (3, 4), (2, 6), (1, 1)])
def test_each_factorization_is_possible_once_or_refused_with_a_reason(
  hosts, devices
):
  size = hosts * devices
  found, refused = layouts.every(layouts.Cluster(hosts, devices, 1, 1, 0))
  names = [*map(layouts.name, found), *refused]
  counts = range(1, size + 1)
  shapes = [
    '{}x{}x{}'.format(*shape)
    for shape in itertools.product(counts, repeat=3)
    if math.prod(shape) == size
  ]
  assert sorted(names) == sorted(shapes)
  for shape, reason in refused.items():
    inside = size // int(shape.split('x')[0])
    words = f'hosts of {devices} devices cannot evenly share workers of'
    one = f'workers must be at least 2 with {size} devices each, got 1'
    assert reason.startswith(one if inside == size else f'{words} {inside}')


def planned(setup, cluster):
  possible, _ = layouts.every(cluster)
  plans, _ = layouts.plans(setup, possible, cluster, 0.0, compute=1e-2)
  return {layouts.name(plan.layout): plan for plan in plans}


def test_the_seconds_of_a_step_are_those_of_arithmetic_by_hand():
  """Here a worker is a host, or two hosts."""
  period, late = 4, CLUSTER.latency
  setup = made(period=period)
  sizes = [4 * x.size for x in jax.tree.leaves(setup.shapes.params)]
  bits = 8 * sum(sizes)
  found = planned(setup, CLUSTER)
  reduced = bits / FAST  # Two devices of a host send each byte once.
  average = 1.5 * bits / SLOW + 6 * late + bits / 2 / FAST
  assert found['4x2x1'].step == pytest.approx(1e-2 + reduced + average / period)
  # Four devices in a ring over two hosts, one ring for each array.
  reduced = 1.5 * bits / SLOW + 6 * late * len(sizes)
  # Two rings share a host's link, each with a quarter of the bytes.
  average = bits / 2 / SLOW + 2 * late + 0.75 * bits / SLOW + 3 * late
  assert found['2x4x1'].step == pytest.approx(1e-2 + reduced + average / period)


RARE = ['8x1x1', '4x2x1', '4x1x2', '2x2x2', '2x4x1', '2x1x4']
OFTEN = ['4x2x1', '4x1x2', '8x1x1', '2x2x2', '2x4x1', '2x1x4']


@pytest.mark.parametrize('period, expected', [(1000, RARE), (2, OFTEN)])
def test_workers_stay_inside_hosts_and_are_larger_if_averages_are_frequent(
  period, expected
):
  assert [*planned(made(period=period), CLUSTER)] == expected


def test_a_worker_per_host_sends_the_bytes_that_a_run_counts():
  setup = made('selsync', delta=1.0)
  possible, _ = layouts.every(CLUSTER)
  own = [x for x in possible if x.workers == CLUSTER.hosts]
  plans, _ = layouts.plans(setup, own, CLUSTER, 0.75, compute=0.0)
  counted = setup.traffic.step + 0.25 * setup.traffic.sync
  assert len(plans) == 2
  for plan in plans:
    assert plan.lssr == 0.75
    assert plan.between == pytest.approx(counted)


def test_a_method_that_cannot_have_this_many_workers_says_so():
  cluster = CLUSTER._replace(hosts=2, devices=6)
  possible, _ = layouts.every(cluster)
  setup = made('groups')
  plans, refused = layouts.plans(setup, possible, cluster, 0.0, 0.0)
  assert {plan.layout.workers for plan in plans} == {2, 4}
  assert 'need a power of two of workers, got 6' in refused['6x1x2']


def test_memory_and_bytes_are_those_of_the_compiled_step(monkeypatch):
  setup, layout = made('selsync', delta=1.0), Layout(2, 2, 2)
  compiled = layouts.compiled_step(setup, layout, EXAMPLES)
  monkeypatch.setattr(layouts, 'compiled_step', lambda *args: compiled)
  plans = planned(setup, CLUSTER)
  own = plans['2x2x2']
  fits, _ = layouts.fitting(setup, plans.values(), EXAMPLES, math.inf, count=4)
  assert [*fits] == [*plans.values()][:4]
  memory = fits[own]
  # The second layout's state alone does not fit, so it is not compiled.
  for plan, limit in (own, memory.total - 7), (plans['2x4x1'], memory.state):
    held = layouts.state_memory(setup, plan.layout).total
    lacks = 7 if plan is own else held - limit
    _, lacking = layouts.fitting(setup, [plan], EXAMPLES, limit)
    assert lacking == {layouts.name(plan.layout): lacks}
  figures = compiled.memory_analysis()
  of_batch = sum(
    x.size * x.dtype.itemsize
    for x in jax.tree.leaves(setup.batch(EXAMPLES // 8))
  )
  # XLA takes no scalars that the step only writes.
  unread = memory.state + of_batch - figures.argument_size_in_bytes
  assert 0 <= unread <= 16
  assert memory.total == (
    figures.argument_size_in_bytes
    + figures.temp_size_in_bytes
    + figures.output_size_in_bytes
    - figures.alias_size_in_bytes
  )
  sent = collections.Counter()
  for each in programs.collectives(compiled.as_text(), CLUSTER.devices):
    at = 'sync' if each.conditional else 'step'
    sent[each.kind, at, each.crosses] += 4 * each.elements
  expected = collections.Counter()
  for axes, c in layouts.inner_collectives(setup, layout):
    expected[c.kind.replace('_', '-'), c.at, 'data' in axes] += c.nbytes
  average = nbytes(setup.shapes.params) / layout.devices_per_worker
  expected['all-reduce', 'sync', True] += average
  assert len(expected) == 5
  for key in expected:
    assert sent[key] == pytest.approx(expected[key], rel=0.02), key
