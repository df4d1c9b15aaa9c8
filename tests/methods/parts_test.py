"""Methods composed of parts, by flags."""

import numpy as np
import optax
import pytest

from selsync_jax import methods
from selsync_jax.commands import config_file
from selsync_jax.config import config_errors, ConfigError
from selsync_jax.configs import base
from selsync_jax.runs import history
from selsync_jax.sync.part import hand, rebuild
from selsync_jax.sync.triggers import any_of, every
from tests.support import hostile_values

DIGITS = 'configs/digits.py'
MEAN = ('sync.optimizer_state=mean',)
RESET = ('sync.optimizer_state=reset',)
OUTER = 'sync.averager=outer', 'sync.averager.optimizer.name=sgd'


def composed(method, *fields):
  """The parts of a preset, changed by flags, as the calls that make them."""
  flags = [f'--config.{field}' for field in fields]
  config = config_file.load(f'{DIGITS}:{method}', flags)
  with config_errors('sync'):
    strategy = methods.create_strategy(
      context=methods.Context(8, 0), **config.sync.to_dict()
    )
  return {
    'trigger': str(strategy.trigger),
    'averager': str(strategy.averager),
    'reducer': str(strategy.reducer),
    'optimizer_state': str(strategy.optimizer_state),
  }


PERIODIC = {
  'trigger': 'every(8)',
  'averager': 'mean()',
  'reducer': 'no_reduction()',
  'optimizer_state': 'local()',
}


@pytest.mark.parametrize(
  'fields, changed',
  [
    ([], {}),
    (['sync.period=3'], {'trigger': 'every(3)'}),
    (['sync.trigger.k=3'], {'trigger': 'every(3)'}),
    (['sync.trigger=None'], {}),
    (
      ['sync.trigger=max_interval', 'sync.trigger.k=5'],
      {
        'trigger': 'max_interval(5)',
      },
    ),
    # In any order; a text that is no number is a name.
    (['sync.trigger.k=5', 'sync.trigger=every'], {'trigger': 'every(5)'}),
    (['sync.wire=int8'], {'averager': 'mean(wire=int8())'}),
    (
      ['sync.averager=gossip', 'sync.wire=float32'],
      {
        'averager': 'gossip()',
      },
    ),
    (['sync.averager.wire=int8'], {'averager': 'mean(wire=int8())'}),
    (['sync.delay=0'], {}),
    (['sync.delay=3'], {'averager': 'delayed(mean(), steps=3)'}),
    (
      ['sync.wire=int8', 'sync.delay=3', 'sync.delay.keep=0.5'],
      {'averager': 'delayed(mean(wire=int8()), steps=3, keep=0.5)'},
    ),
    (
      ['sync.wire=bfloat16', 'sync.optimizer_state=mean'],
      {
        'averager': 'mean(wire=bfloat16())',
        'optimizer_state': 'mean(wire=bfloat16())',
      },
    ),
    (
      ['sync.averager.wire=int4', *MEAN],
      {
        'averager': 'mean(wire=int4())',
        'optimizer_state': 'mean(wire=bfloat16())',
      },
    ),
    (
      ['sync.wire=int8', *MEAN, 'sync.optimizer_state.wire=float32'],
      {
        'averager': 'mean(wire=int8())',
        'optimizer_state': 'mean(wire=float32())',
      },
    ),
    (MEAN, {'optimizer_state': 'mean()'}),
    (
      ['sync.optimizer_state=reset', "sync.optimizer_state.only=('trace',)"],
      {
        'optimizer_state': "reset(only=('trace',))",
      },
    ),
    (
      ['sync.optimizer_state=mixed', "sync.optimizer_state.mean=('mu',)"],
      {'optimizer_state': "mixed(mean=('mu',))"},
    ),
    (
      [
        'sync.trigger=any_of',
        'sync.trigger.change=selsync',
        'sync.trigger.change.delta=0.5',
        'sync.trigger.bound=max_interval',
        'sync.trigger.bound.k=9',
      ],
      {'trigger': 'any_of(max_interval(9), selsync(0.5))'},
    ),
    (
      ['sync.reducer=at_sync', 'sync.reducer.reducer=all_reduce'],
      {
        'reducer': 'at_sync(all_reduce())',
      },
    ),
  ],
)
def test_flags_replace_and_change_parts(fields, changed):
  assert composed('local_sgd', *fields) == PERIODIC | changed


@pytest.mark.parametrize(
  'method, fields, message',
  [
    (
      'bsp',
      ['sync.trigger=evry'],
      "trigger.name: 'evry' is not one of every, ",
    ),
    ('bsp', ['sync.trigger=every'], 'trigger: every needs k'),
    ('bsp', ['sync.trigger.k=None'], 'trigger.k=None: must be a whole number'),
    ('bsp', ['sync.trigger.k=(1,)'], 'trigger.k=(1,): must be a whole number'),
    (
      'selsync',
      ['sync.vote_every=None'],
      'vote_every=None: must be a whole number',
    ),
    ('fedavg', ['sync.epochs=inf'], 'sync.epochs=inf: must be a finite number'),
    (
      'post_local',
      ['sync.switch=inf'],
      'sync.switch=inf: must be a finite number',
    ),
    (
      'diloco',
      ['sync.outer=None'],
      'sync.outer=None: must be a dict of fields',
    ),
    (
      'diloco',
      ['sync.outer.learning_rate=None'],
      'needs learning_rate',
    ),
    (
      'local_sgd',
      ['sync.optimizer_state=mixed', 'sync.optimizer_state.mean=3'],
      'optimizer_state.mean=3: must be a tuple, and each element a name',
    ),
    (
      'local_sgd',
      ['sync.averager=outer', 'sync.averager.optimizer=3'],
      'averager.optimizer=3: must have name and learning_rate',
    ),
    (
      'bsp',
      ['sync.trigger.delta=1'],
      'trigger.delta=1: every has no delta; it has k',
    ),
    (
      'selsync',
      ['sync.trigger.delta=low'],
      "trigger.delta='low': must be a number",
    ),
    (
      'selsync',
      ['sync.trigger.delta=-1'],
      'trigger.delta=-1: must be at least 0',
    ),
    ('local_sgd', ['sync.trigger.k=2.5'], 'k=2.5: must be a whole number'),
    (
      'local_sgd',
      ['sync.wire=int3'],
      "wire.name: 'int3' is not one of float32",
    ),
    ('bsp', ['sync.wire=int8'], 'averager no_averaging() takes none'),
    ('bsp', ['sync.delay=2'], 'no_averaging() cannot be delayed: it averages'),
    ('local_sgd', ['sync.delay=-1'], 'delay.steps=-1: must be at least 1'),
    ('local_sgd', ['sync.delay.keep=0.5'], 'sync.delay: delayed needs steps'),
    (
      'gossip',
      ['sync.delay=2', 'sync.optimizer_state=mean'],
      'needs averages of all parameters over all workers, and averager '
      'delayed(gossip(), steps=2) makes none; set local',
    ),
    (
      'fda',
      ['sync.delay=2'],
      'measures from common parameters, and averager delayed(mean(), '
      'steps=2) leaves none',
    ),
    ('local_sgd', ['sync.averager=none'], 'workers would never talk'),
    (
      'selsync',
      ['sync.delta=None', 'sync.bytes_per_step=1e3', 'sync.max_period=1'],
      ': at least one synchronization in 1 step, and the budget is at most one '
      'a step, so nothing is left to decide; raise the 1 step, or allow more',
    ),
    (
      'local_sgd',
      [
        *('sync.trigger=any_of', 'sync.trigger.a=budgeted'),
        *('sync.trigger.a.trigger=selsync', 'sync.trigger.a.trigger.delta=1'),
        *('sync.trigger.a.lssr=0.9', 'sync.trigger.b=max_interval'),
        'sync.trigger.b.k=8',
      ],
      'at least one synchronization in 8 steps, and the budget is one in '
      '10 steps',
    ),
    (
      'local_sgd',
      [
        *OUTER,
        'sync.averager.optimizer.learning_rate=1.0',
        *('sync.averager.averager=fragments', 'sync.averager.averager.k=2'),
      ],
      'averages a piece of it at a time; put the outer step inside',
    ),
    (
      'local_sgd',
      ['sync.averager=fragments', 'sync.averager.k=9', *RESET],
      'optimizer_state reset() needs averages of all parameters over all '
      'workers, and averager fragments(9) makes none; set local',
    ),
    (
      'bsp',
      ['sync.averager=mean', 'sync.delay=3', 'sync.delay.keep=0.0'],
      'averager delayed(mean(), steps=3, keep=0.0) drops a part of those taken '
      'while an average travels; set keep=1',
    ),
    *(
      (
        'local_sgd',
        ['sync.reducer=at_sync', f'sync.reducer.reducer={name}'],
        why,
      )
      for name, why in {
        'none': 'no_reduction() reduces nothing, also at synchronizations',
        'lazy': 'lazy() compares the gradients of consecutive steps',
        'scaffold': 'scaffold() reduces at synchronizations already',
      }.items()
    ),
    (
      'local_sgd',
      [
        *('sync.reducer=clipped', 'sync.reducer.norm=1.0'),
        *('sync.reducer.reducer=at_sync', 'sync.reducer.reducer.reducer=int8'),
      ],
      'at_sync(int8()) leaves gradients local between synchronizations',
    ),
    (
      'local_sgd',
      [
        *('sync.averager=interleave', 'sync.averager.k=2'),
        *('sync.averager.averager=mean', 'sync.averager.between=none'),
      ],
      'averager no_averaging() averages nothing, so no other averager can hold',
    ),
    (
      'local_sgd',
      [*OUTER, 'sync.averager.optimizer.learning_rte=1'],
      'averager.optimizer.learning_rte=1: sgd has no learning_rte',
    ),
    (
      'local_sgd',
      ['sync.averager=none', 'sync.reducer=at_sync', 'sync.reducer.reducer=a'],
      "reducer.reducer.name: 'a' is not one of none, all_reduce",
    ),
  ],
)
def test_a_part_that_cannot_be_is_refused_in_one_line(method, fields, message):
  with pytest.raises(ConfigError) as error:
    composed(method, *fields)
  assert message in str(error.value)
  assert str(error.value).removeprefix('--').startswith('config.sync')
  assert '\n' not in str(error.value)


def test_none_is_refused_by_every_field_that_needs_a_value():
  context, accepted = methods.Context(8, 0), set()
  for method in methods.METHODS:
    for field in methods.fields(method):
      try:
        methods.create_strategy(method, context, **{field: None})
      except ValueError as error:
        line = f'config.sync.{field}=None: must be '
        assert str(error).startswith(line)  # noqa: PT017
      else:
        accepted.add(f'{method}.{field}')
  assert accepted == {
    *(f'selsync.{f}' for f in ('delta', 'lssr', 'bytes_per_step')),
    *(
      f'selsync.{f}'
      for f in ('link_share', 'smoothing', 'quorum', 'max_period')
    ),
    *('groups.all_every', 'micro.capacity', 'exdyna.capacity', 'lag.bits'),
  }


def test_every_value_of_a_field_is_accepted_or_refused_in_one_line():
  flags = [
    (method, f'sync.{field}={value}')
    for method in methods.METHODS
    for field in methods.fields(method)
    for value in hostile_values.VALUES
  ]
  refused = []
  for method, flag in flags[::7]:
    try:
      composed(method, flag)
    except ConfigError as error:
      refused.append(str(error))
  assert 0.5 < len(refused) / len(flags[::7]) < 0.95
  assert not [line for line in refused if '\n' in line]


def test_a_row_hands_its_fields_and_values_of_the_run_to_its_parts():
  context = methods.Context(40, 5)
  noloco = methods.METHODS['noloco'](context, period=3)
  assert str(noloco.trigger) == 'every(3)'
  pairs = "averager=gossip('random', seed=5)"
  assert str(noloco.averager) == f'outer(..., {pairs})'
  assert str(methods.METHODS['fedavg'](context, epochs=0.1).trigger) == (
    'every(4)'
  )
  with pytest.raises(TypeError, match="argument 'perod'"):
    methods.METHODS['noloco'](context, perod=3)


def test_an_outer_optimizer_has_its_own_learning_rate():
  context = methods.Context(8, 0, optax.constant_schedule(0.1))
  optimizer = {'name': 'sgd', 'learning_rate': 0.7}
  averager = methods.create_strategy(
    'local_sgd', context, averager={'name': 'outer', 'optimizer': optimizer}
  ).averager
  outer, tree = (
    averager.recipe.arguments.arguments['optimizer'],
    {'params': 1.0},
  )
  updates, _ = outer.update(tree, outer.init(tree), tree)
  np.testing.assert_allclose(updates['params'], -0.7, rtol=1e-6)


def test_a_budget_is_a_field_of_selsync():
  assert composed('selsync', 'sync.delta=None') == composed(
    'selsync', 'sync.delta=None', 'sync.lssr=0.9'
  )
  parts = composed('selsync', 'sync.delta=None', 'sync.bytes_per_step=9.0')
  assert parts['trigger'] == 'budgeted(selsync(0.3), bytes_per_step=9.0)'


@pytest.mark.parametrize('budget', ['lssr=0.5', 'bytes_per_step=9.0'])
def test_a_fixed_delta_and_a_budget_are_refused_together(budget):
  with pytest.raises(ConfigError) as error:
    composed('selsync', 'sync.delta=0.2', f'sync.{budget}')
  assert str(error.value).endswith(
    f'delta=0.2 is fixed, but {budget} would move it; set delta=None, or no '
    'budget'
  )


def test_a_share_of_the_link_is_for_averages_behind_the_steps():
  flags = 'sync.delta=None', 'sync.link_share=0.5'
  with pytest.raises(ConfigError, match='mean\\(\\) has no delay'):
    composed('selsync', *flags)
  parts = composed('selsync', *flags, 'sync.delay=3')
  assert parts['trigger'] == 'budgeted(selsync(0.3), link_share=0.5)'


def test_the_method_budgeted_is_refused_with_what_replaces_it():
  with pytest.raises(ConfigError) as error:
    config_file.load(f'{DIGITS}:budgeted', [])
  assert str(error.value) == (
    "config.sync.method='budgeted' is now selsync with sync.lssr or "
    'sync.bytes_per_step'
  )


def test_a_part_is_rebuilt_wherever_it_stands():
  inner = any_of(every(2), every(3))
  assert str(rebuild(every(2), k=5)) == 'every(5)'
  assert hand(inner, wire=None) is None
  with pytest.raises(ValueError, match=r'every\(2\) has no j'):
    rebuild(every(2), j=1)


def test_every_method_has_room_for_every_kind_of_part():
  for method in methods.METHODS:
    assert set(methods.PARTS) <= set(base.get_config(method).sync)


def test_a_composed_method_is_named_by_what_was_replaced():
  flags = ['--config.sync.wire=int8', '--config.sync.trigger.delta=0.4']
  sync = config_file.load(f'{DIGITS}:selsync', flags).sync.to_dict()
  assert history.composition(sync) == 'selsync, wire int8'
  everything = sync | {k: {'name': 'x', 'steps': 2} for k in methods.PARTS}
  assert all(kind in history.composition(everything) for kind in methods.PARTS)
