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
  'optimizer_state.every.nu=6 optimizer_state=mean': {
    'optimizer_state': "mean(every={'nu': 6})"
  },
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


def test_a_flag_changes_one_period_of_a_moment():
  policy = composed('des_loc optimizer_state.every.mu=5')['optimizer_state']
  assert policy == "mean(every={'mu': 5, 'nu': 6})"
  policy = composed('des_loc second=1 wire=int4')['optimizer_state']
  assert policy == "mean(every={'mu': 3, 'nu': 1}, wire=bfloat16())"


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


def test_a_share_of_the_link_is_for_averages_behind_the_steps():
  parts = composed('selsync delta=None link_share=0.5 delay=3')
  assert parts['trigger'] == 'budgeted(selsync(0.3), link_share=0.5)'


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
