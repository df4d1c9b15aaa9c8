"""The choices of a search."""

import pathlib

import pytest

from selsync_jax.commands.candidates import Candidates
from selsync_jax.config import ConfigError
from selsync_jax.methods import METHODS
from selsync_jax.tune import choices, space
from selsync_jax.tune.choices import OWN, Range
from tests.support.lines import raises

NUMPY = '--config.data.backend=numpy'


def build(*specs, fields=(), given=None, file='digits'):
  candidates = Candidates(file, [NUMPY, *fields], pathlib.Path('nowhere'))
  load, fixed, given = candidates.settings, candidates.fixed, given or {}
  chosen = space.build(specs, load, fixed, given)
  space.check_used([chosen], load, fixed, given.get(choices.ALL, {}))
  return chosen, candidates


@pytest.fixture(scope='module')
def every():
  return build(*METHODS)


def test_a_method_may_average_as_often_as_a_budget_lets(every):
  chosen, _ = every

  def found(method, fits):
    return [*chosen.densest(method, fits)]

  def fits(fields):
    bits = int(fields['sync.wire'].removeprefix('int'))
    return fields['sync.period'] >= bits * 2.5

  dense = {'sync.wire': 'int4', 'sync.period': 10}
  coarser = {'sync.wire': 'int2', 'sync.period': 5}
  assert found('local_sgd', fits) == [
    recipe
    for each in (dense, coarser)
    for recipe in (each, each | {space.RATE: 0.2})
  ]
  assert found('local_sgd', lambda fields: False) == found('bsp', fits) == []


def test_a_budget_may_let_the_usual_share_of_steps_average():
  chosen, _ = build('selsync', fields=['--config.sync.delta=None'])
  made = chosen.densest('selsync', lambda fields: fields['sync.lssr'] > 0.8)
  assert next(made) == {'sync.wire': 'int4', 'sync.lssr': 0.9}


def test_a_budget_may_let_larger_parts_be_averaged_at_every_step():
  chosen, _ = build('partial')
  made = chosen.densest('partial', lambda fields: fields['sync.fragments'] > 4)
  assert next(made) == {'sync.wire': 'int4', 'sync.fragments': 5}


@pytest.mark.parametrize(
  'names, spent',
  [
    (('float32', 'int8'), ['int8']),
    (('int4', 'int8'), ['int8', 'int4']),
    (('float32',), [None]),
  ],
)
def test_a_budget_is_spent_on_the_coarsest_wires_that_may_be_chosen(
  names, spent
):
  given = {'all': {'sync.wire': names}}
  chosen, _ = build('local_sgd', given=given)
  made = [*chosen.densest('local_sgd', lambda fields: True)]
  assert [fields.get('sync.wire') for fields in made[::2]] == spent
  assert {fields['sync.period'] for fields in made} == {2}


def test_the_value_of_the_config_is_in_every_list():
  own = {'sync.period': ('own', 2, 16)}  # The config has 8.
  chosen, _ = build('local_sgd', given={'local_sgd': own})
  made = chosen.densest('local_sgd', lambda fields: fields['sync.period'] > 4)
  assert next(made) == {'sync.wire': 'int4'}


def test_ranges_are_around_the_own_values_and_within_their_limits(every):
  found = every[0].choices
  assert found['local_sgd']['sync.period'] == Range(2, 32)
  assert found['diloco']['sync.outer.learning_rate'].high == 2.8
  assert found['groups']['sync.size'] == (2, 4)  # Powers of two of 4 workers.
  assert found['fedavg']['sync.fraction'] == Range(0.25, 1.0)
  assert found['muloco']['optimizer.learning_rate'] == Range(0.005, 0.08)
  assert found['bsp'].keys() == {
    *('optimizer.learning_rate', 'epochs', 'schedule.warmup_epochs')
  }


HALF = '+sync.delay.keep=0.5+sync.delay.extrapolate=0.5'


def test_parts_are_chosen_where_the_method_accepts_them(every):
  found = every[0].choices
  assert found['local_sgd']['sync.wire'] == (
    *(OWN, 'bfloat16', 'int8', 'int4', 'int2'),
  )
  late = [f'{k}{mix}' for k in (1, 2, 4, 8) for mix in ('', HALF)]
  assert found['local_sgd']['sync.delay'] == (OWN, *late)
  assert found['edit']['sync.delay'] == (OWN, *late)  # Its mean has two rounds.
  # It has no averager.
  assert {'sync.wire', 'sync.delay'}.isdisjoint(found['power_sgd'])
  assert found['edit']['sync.optimizer_state'] == (OWN, 'mean', 'reset')
  assert 'sync.optimizer_state' not in found['noloco']  # It averages in pairs.
  # It averages a piece at a time, which nothing extrapolates.
  assert found['sparta']['sync.delay'] == (OWN, '1', '2', '4', '8')


def test_a_value_may_bring_other_fields(every):
  chosen, candidates = every
  fields = {'sync.delay': f'2{HALF}'}
  assert fields['sync.delay'] in chosen.choices['diloco']['sync.delay']
  delay = candidates.settings('diloco', fields).config.sync.delay
  assert delay.to_dict() == {'steps': 2, 'keep': 0.5, 'extrapolate': 0.5}
  (trial,) = candidates.trials('diloco', fields, 1, 0)
  assert trial.config.sync.delay == delay
  with_mean, _ = build('diloco+sync.averager=mean')
  assert (
    'sync.outer.learning_rate'
    not in with_mean.choices['diloco+sync.averager=mean']
  )


def test_a_budget_is_chosen_where_no_delta_is_set():
  with_delta, without = (
    build('selsync', fields=fields)[0].choices['selsync']
    for fields in ((), ['--config.sync.delta=None'])
  )
  assert 'sync.lssr' not in with_delta and 'sync.delta' in with_delta
  assert 'sync.lssr' in without and 'sync.delta' not in without


def test_fields_set_on_the_command_line_are_not_chosen():
  spec = 'local_sgd+sync.period=4+sync.wire.name=int8'
  chosen, _ = build(spec, fields=['--config.epochs=4'])
  names = chosen.choices[spec]
  assert not {'epochs', 'sync.period', 'sync.wire'} & names.keys()
  assert 'optimizer.learning_rate' in names


def test_a_file_replaces_choices(tmp_path):
  path = tmp_path / 'space.toml'
  path.write_text(
    '[all]\n"sync.wire" = ["float32", "int2"]\n'
    '[diloco]\n"sync.period" = {low = 10, high = 90}\n'
    '"schedule.warmup_epochs" = {low = 0, high = 2.5, log = false}\n'
  )
  given = choices.read(path)
  chosen, _ = build('diloco', 'power_sgd', given=given)
  own = chosen.choices['diloco']
  assert own['sync.period'] == Range(10, 90) and own['sync.period'].is_whole
  assert own['sync.wire'] == ('float32', 'int2')
  assert not own['schedule.warmup_epochs'].is_whole
  assert chosen.choices['power_sgd']['sync.wire'] == ('float32',)


def test_a_listed_number_is_as_it_is_and_one_of_a_range_stays_inside():
  of_range = {
    'sync.lssr': Range(0.5, 0.999),
    'sync.max_period': Range(2, 5),
    'schedule.warmup_epochs': Range(-1.0, 2.0, log=False),
  }
  given = {space.RATE: (0.0125, 0.2), **of_range}
  chosen = space.Space({'selsync': given}, {'selsync': dict.fromkeys(given)})
  drawn = [chosen.draw(0, number)[1] for number in range(200)]
  assert {fields[space.RATE] for fields in drawn} == {0.0125, 0.2}
  assert {fields['sync.max_period'] for fields in drawn} == {2, 3, 4, 5}
  for field, each in of_range.items():
    values = [fields[field] for fields in drawn]
    assert each.low <= min(values) < max(values) <= each.high
  short = [len(f'{fields["sync.lssr"]}') <= len('0.61') for fields in drawn]
  assert sum(short) > 190  # The few above 0.99 have three digits.


def test_a_draw_leaves_out_fields_that_stay_as_they_are():
  given = {space.RATE: (0.1,), 'sync.wire': ('own',), 'epochs': (2,)}
  own = {space.RATE: 0.1, 'sync.wire': 'int8', 'epochs': 4}
  chosen = space.Space({'local_sgd': given}, {'local_sgd': own})
  assert chosen.draw(0, 0) == ('local_sgd', {'epochs': 2})


def test_a_field_of_a_part_is_chosen_if_the_method_names_the_part():
  spec, own = 'local_sgd+sync.delay=4', {'sync.delay.keep': Range(0.1, 0.9)}
  chosen, _ = build(spec, given={spec: own})
  assert chosen.choices[spec]['sync.delay.keep'] == Range(0.1, 0.9)
  assert 'sync.delay' not in chosen.choices[spec]
  with pytest.raises(ConfigError, match='delayed needs steps'):
    build('local_sgd', given={'local_sgd': own})


@pytest.mark.parametrize(
  'text, line',
  [
    ('[all', 'Expected'),
    ('# Größe', 'must be UTF-8'),
    ('"sync.wire" = [1]', 'sync.wire: must be in a section'),
    ('[all]\n"sync.wire" = 1', '[all] sync.wire: must be a list of values, or'),
    (
      '[all]\n"sync.wire" = []',
      '[all] sync.wire: must be a list of values, or',
    ),
    ('[all]\n"sync.wire" = [[1]]', '[all] sync.wire: Expected `bool |'),
    (
      '[all]\nsync.wire = [1]',
      '[all] sync: a name with dots needs quotes: "sy',
    ),
    ('[all]\n"epochs" = {low = 3}', 'missing required field `high`'),
    ('[all]\n"epochs" = {low = "a", high = 2}', '[all] epochs: Expected `int'),
    (
      '[all]\n"epochs" = {low = 3, high = 2}',
      '[all] epochs: low must be below',
    ),
    ('[all]\n"epochs" = {low = 0, high = 2}', 'low must be above 0, or log ='),
    ('[all]\n"epochs" = {low = 1, high = 2, by = 1}', 'unknown field `by`'),
    (
      '[all]\n"model.name" = ["a"]',
      'model.name: must be a field of sync, optimizer, schedule, epochs, steps',
    ),
  ],
)
def test_a_wrong_file_is_one_line_that_names_the_place(text, line, tmp_path):
  path = tmp_path / 'space.toml'
  path.write_text(text, encoding='latin-1')
  with raises(ConfigError, f'--space={path}: ...{line}...'):
    choices.read(path)


@pytest.mark.parametrize(
  'given, line',
  [
    ({'diloco': {'sync.periods': (1, 2)}}, 'this config has no such field'),
    ({'all': {'sync.wire': ('int5',)}}, "'int5' is not one of float32"),
    ({'diloco': {'sync.period': Range(0, 5, log=False)}}, 'must be in [1,'),
  ],
)
def test_a_value_that_no_method_accepts_is_refused(given, line):
  with raises(ConfigError, f'...{line}...'):
    build('diloco', 'bsp', given=given)
