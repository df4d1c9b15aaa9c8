"""Methods composed of parts, by flags."""

import re

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


def composed(text):
  """The calls that make the parts of `METHOD FLAG FLAG ...`."""
  method, *fields = re.split(r' (?=[\w.]+=)| $', text)
  flags = [f'--config.sync.{field}' for field in fields if field]
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


# By flags of `config.sync`: the changed parts of local SGD.
CHANGED = {
  '': {},
  'period=3': {'trigger': 'every(3)'},
  'trigger.k=3': {'trigger': 'every(3)'},
  'trigger=None': {},
  'trigger=max_interval trigger.k=5': {'trigger': 'max_interval(5)'},
  # In any order; a text that is not a number is a name.
  'trigger.k=5 trigger=every': {'trigger': 'every(5)'},
  'trigger=any_of trigger.change=selsync trigger.change.delta=0.5 '
  'trigger.bound=max_interval trigger.bound.k=9': {
    'trigger': 'any_of(max_interval(9), selsync(0.5))'
  },
  'wire=int8': {'averager': 'mean(wire=int8())'},
  'averager.wire=int8': {'averager': 'mean(wire=int8())'},
  'averager=gossip wire=float32': {'averager': 'gossip()'},
  'delay=0': {},
  'delay=3': {'averager': 'delayed(mean(), steps=3)'},
  'wire=int8 delay=3 delay.keep=0.5': {
    'averager': 'delayed(mean(wire=int8()), steps=3, keep=0.5)'
  },
  'wire=bfloat16 optimizer_state=mean': {
    'averager': 'mean(wire=bfloat16())',
    'optimizer_state': 'mean(wire=bfloat16())',
  },
  'averager.wire=int4 optimizer_state=mean': {
    'averager': 'mean(wire=int4())',
    'optimizer_state': 'mean(wire=bfloat16())',
  },
  'wire=int8 optimizer_state=mean optimizer_state.wire=float32': {
    'averager': 'mean(wire=int8())',
    'optimizer_state': 'mean(wire=float32())',
  },
  'optimizer_state=mean': {'optimizer_state': 'mean()'},
  "optimizer_state=reset optimizer_state.only=('trace',)": {
    'optimizer_state': "reset(only=('trace',))"
  },
  'reducer=at_sync reducer.reducer=all_reduce': {
    'reducer': 'at_sync(all_reduce())'
  },
}


@pytest.mark.parametrize('flags', CHANGED)
def test_flags_replace_and_change_parts(flags):
  assert composed(f'local_sgd {flags}') == PERIODIC | CHANGED[flags]


OUTER = 'local_sgd averager=outer averager.optimizer.name=sgd'
AT_SYNC = 'local_sgd reducer=at_sync reducer.reducer='
# By method and flags: a part of the error message.
REFUSED = {
  'bsp trigger=evry': "trigger.name: 'evry' is not one of every, ",
  'bsp trigger=every': 'trigger: every needs k',
  'bsp trigger.k=None': 'trigger.k=None: must be a whole number',
  'bsp trigger.k=(1,)': 'trigger.k=(1,): must be a whole number',
  'bsp trigger.delta=1': 'trigger.delta=1: every has no delta; it has k',
  'bsp wire=int8': 'averager no_averaging() has no such mean',
  'bsp delay=2': 'no_averaging() cannot be delayed: it averages',
  'bsp averager=mean delay=3 delay.keep=0.0': (
    'averager delayed(mean(), steps=3, keep=0.0) drops a part of those taken '
    'while an average travels; set keep=1'
  ),
  'selsync vote_every=None': 'vote_every=None: must be a whole number',
  'selsync trigger.delta=low': "trigger.delta='low': must be a number",
  'selsync trigger.delta=-1': 'trigger.delta=-1: must be at least 0',
  'selsync delta=None bytes_per_step=1e3 max_period=1': (
    ': at least one synchronization in 1 step, and the budget is at most one '
    'a step, so nothing is left to decide; raise the 1 step, or allow more'
  ),
  'fedavg epochs=inf': 'sync.epochs=inf: must be a finite number',
  'post_local switch=inf': 'sync.switch=inf: must be a finite number',
  'diloco outer=None': 'sync.outer=None: must be a dict of fields',
  'diloco outer.learning_rate=None': 'needs learning_rate',
  'gossip delay=2 optimizer_state=mean': (
    'needs averages of all parameters over all workers, but averager '
    'delayed(gossip(), steps=2) makes none; set local'
  ),
  'fda delay=2': (
    'measures from common parameters, but averager delayed(mean(), steps=2) '
    'leaves none'
  ),
  'local_sgd optimizer_state=mean optimizer_state.only=3': (
    'optimizer_state.only=3: must be a tuple, and each element a name'
  ),
  'local_sgd averager=outer averager.optimizer=3': (
    'averager.optimizer=3: must have name and learning_rate'
  ),
  f'{OUTER} averager.optimizer.learning_rte=1': (
    'averager.optimizer.learning_rte=1: sgd has no learning_rte'
  ),
  f'{OUTER} averager.optimizer.learning_rate=1.0 averager.averager=fragments '
  'averager.averager.k=2': (
    'averages a piece of it at a time; put the outer step inside'
  ),
  'local_sgd trigger.k=2.5': 'k=2.5: must be a whole number',
  'local_sgd wire=int3': "wire.name: 'int3' is not one of float32",
  'local_sgd delay=-1': 'delay.steps=-1: must be at least 1',
  'local_sgd delay.keep=0.5': 'sync.delay: delayed needs steps',
  'local_sgd averager=none': (
    'averager no_averaging() and reducer no_reduction(): workers never '
    'communicate'
  ),
  'local_sgd averager=none reducer=all_reduce': (
    'trigger every(8) would decide nothing: reducer all_reduce() runs at every '
    'step, and averager no_averaging() does nothing; set an averager, or the '
    'reducer at_sync'
  ),
  'local_sgd averager=gossip reducer=at_sync reducer.reducer=top_k '
  'reducer.reducer.density=0.2': (
    'trigger every(8) lets parameters differ, but reducer at_sync(top_k(0.2)) '
    'needs them equal: reduce at every step, or set an averager such as mean'
  ),
  'fda averager=gossip': (
    'trigger fda(0.1) measures from common parameters, but averager gossip() '
    'leaves none'
  ),
  'fda reducer=at_sync reducer.reducer=all_reduce': (
    'reducer at_sync(all_reduce()) comes before the local update, but trigger '
    'fda(0.1) decides after it'
  ),
  'gossip optimizer_state=mean': (
    'optimizer_state mean() needs averages of all parameters over all workers, '
    'but averager gossip() makes none; set local'
  ),
  'bsp optimizer_state=reset': (
    'optimizer_state reset() changes at a synchronization of parameters, but '
    'averager no_averaging() makes none'
  ),
  'local_sgd averager=none reducer=at_sync reducer.reducer=a': (
    "reducer.reducer.name: 'a' is not one of none, all_reduce"
  ),
  'local_sgd averager=fragments averager.k=9 optimizer_state=reset': (
    'optimizer_state reset() needs averages of all parameters over all '
    'workers, but averager fragments(9) makes none; set local'
  ),
  'local_sgd averager=interleave averager.k=2 averager.averager=mean '
  'averager.between=none': (
    'averager no_averaging() averages nothing, so no other averager can use'
  ),
  'local_sgd trigger=any_of trigger.a=budgeted trigger.a.trigger=selsync '
  'trigger.a.trigger.delta=1 trigger.a.lssr=0.9 trigger.b=max_interval '
  'trigger.b.k=8': (
    'at least one synchronization in 8 steps, and the budget is one in 10 steps'
  ),
  f'{AT_SYNC}none': 'no_reduction() reduces nothing, even at synchronizations',
  f'{AT_SYNC}lazy': 'lazy() compares the gradients of consecutive steps',
  f'{AT_SYNC}scaffold': 'scaffold() reduces at synchronizations already',
  'local_sgd reducer=clipped reducer.norm=1.0 reducer.reducer=at_sync '
  'reducer.reducer.reducer=int8': (
    'at_sync(int8()) leaves gradients local between synchronizations'
  ),
}


@pytest.mark.parametrize('flags', REFUSED)
def test_a_part_that_cannot_be_is_refused_in_one_line(flags):
  with pytest.raises(ConfigError) as error:
    composed(flags)
  assert REFUSED[flags] in str(error.value)
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
    f'{method} {field}={value}'
    for method in methods.METHODS
    for field in methods.fields(method)
    for value in hostile_values.VALUES
  ]
  refused = []
  for flag in flags[::7]:
    try:
      composed(flag)
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
  nine_of_ten = composed('selsync delta=None lssr=0.9')
  assert composed('selsync delta=None') == nine_of_ten
  parts = composed('selsync delta=None bytes_per_step=9.0')
  assert parts['trigger'] == 'budgeted(selsync(0.3), bytes_per_step=9.0)'


@pytest.mark.parametrize('budget', ['lssr=0.5', 'bytes_per_step=9.0'])
def test_a_fixed_delta_and_a_budget_are_refused_together(budget):
  with pytest.raises(ConfigError) as error:
    composed(f'selsync delta=0.2 {budget}')
  assert str(error.value).endswith(
    f'delta=0.2 is fixed, but {budget} would move it; set delta=None, or no '
    'budget'
  )


def test_a_share_of_the_link_is_for_averages_behind_the_steps():
  flags = 'selsync delta=None link_share=0.5'
  with pytest.raises(ConfigError, match='mean\\(\\) has no delay'):
    composed(flags)
  parts = composed(f'{flags} delay=3')
  assert parts['trigger'] == 'budgeted(selsync(0.3), link_share=0.5)'


def test_the_method_budgeted_is_refused_with_its_replacement():
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
