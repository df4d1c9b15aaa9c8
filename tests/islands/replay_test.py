"""The contents of islands' logs, and logs that cannot be repeated."""

import json
import re
import types

import numpy as np
import pytest

from selsync_jax.commands import replay as command
from selsync_jax.config import ConfigError, RunError
from selsync_jax.islands import replay, rounds
from selsync_jax.runs import records
from tests.support import short_runs

SLOTS = ['a', 'b', 'c']


def began(slots='abc', program=None, **copies):
  return {'slots': [*slots], 'copies': copies, 'program': program}


def row(step, members='abc', begins=None):
  return {
    'step': step,
    'members': [*members],
    'readers': [*members],
    'digest': 0,  # Of no parameters.
    'arrived': None,
    'shares': None,
    'travel': None,
    'begins': begins,
  }


FIRST = row(1, begins=began())


def logs(**rows):
  return {name: {each['step']: each for each in rows[name]} for name in rows}


def test_the_past_of_an_island_that_rejoined_is_the_past_of_its_donor():
  """The same holds for the other one, if it has rejoined before."""
  again, last = row(9, begins=began(b='a')), row(12, 'bc', began(c='b'))
  found = rounds.lineage(
    logs(
      a=[FIRST, row(4), row(6, 'ac'), again],
      b=[FIRST, row(4, 'ab'), again, last],
      c=[FIRST, row(4), row(6, 'ac'), row(7), again, last, row(15, 'c')],
    )
  )
  members = {step: ''.join(row['members']) for step, row in found.items()}
  assert members == {
    **{1: 'abc', 4: 'abc', 6: 'ac', 9: 'abc'},
    **{12: 'bc', 15: 'c'},
  }


def test_a_step_that_the_others_have_repeated_is_theirs():
  found = rounds.lineage(
    logs(
      a=[FIRST, row(4)],
      b=[FIRST, row(4, 'bc')],
      c=[FIRST, row(4, 'bc')],
    )
  )
  assert found[4]['members'] == ['b', 'c']


@pytest.mark.parametrize(
  'rows, line',
  [
    ([row(3, begins=began())], 'island c: .* with its rounds before step 3$'),
    ([row(1)], 'island c: .* before step 1$'),
    ([row(5, begins=began(c='a'))], 'island a: .* before step 5$'),
  ],
)
def test_a_run_whose_beginning_is_lost_is_refused(rows, line):
  with pytest.raises(RunError, match=line):
    rounds.lineage(logs(c=rows))


@pytest.fixture
def write(tmp_path):
  """Writes the run of an island."""

  def write(name, *rows, **fields):
    config = short_runs.config(workers=3, **fields).to_dict()
    (tmp_path / name).mkdir()
    records.write_config(tmp_path / name, config)
    lines = [f'{json.dumps(each)}\n' for each in rows]
    (tmp_path / name / rounds.ROUNDS).write_text(''.join(lines))

  return write


def refused(folder, line, kind=RunError):
  with pytest.raises(kind, match=line):
    replay.replay(folder)


def test_a_folder_that_holds_no_run_of_islands_is_refused(tmp_path):
  with pytest.raises(ConfigError, match=r'^needs one FOLDER, got 0$'):
    command.main([])
  with pytest.raises(ConfigError, match=r'no folder in it has a rounds\.jso'):
    command.main([str(tmp_path)])


def test_islands_of_different_runs_are_refused(tmp_path, write):
  write('a', FIRST)
  write('b', FIRST, seed=1)
  line = r'a and \S+b are different runs: config\.seed is 0 in one, and 1 in'
  refused(tmp_path, line, ConfigError)
  write('d', FIRST)
  refused(tmp_path, 'd is not one of the islands a, b, c$', ConfigError)


@pytest.mark.parametrize(
  'begins, line',
  [
    (began(program='other'), 'step 5: .* with another training step than'),
    (began('ab'), 'step 5: the run continued with a, b in place of a, b, c'),
  ],
)
def test_a_run_that_has_changed_is_refused(begins, line, tmp_path, write):
  write('a', FIRST, row(5, begins=begins))
  refused(tmp_path, line)


def test_a_damaged_log_is_refused(tmp_path, write):
  write('a', FIRST, {'step': 2})
  refused(tmp_path, re.escape(f'{tmp_path}/a/rounds.jsonl is damaged: lines'))


def test_a_line_that_a_kill_has_cut_off_is_none(tmp_path, write):
  write('a', FIRST, row(2))
  path = tmp_path / 'a' / rounds.ROUNDS
  path.write_bytes(path.read_bytes()[:-9])
  assert [*rounds.read(tmp_path / 'a')] == [1]


def test_an_island_that_had_other_parameters_is_named(tmp_path, write):
  for name in SLOTS:
    write(name, FIRST)
  refused(tmp_path, '^step 1: a, b, c had other parameters than here$')


def test_a_disk_that_is_full_is_named_with_the_file(tmp_path):
  log, path = rounds.Rounds(tmp_path), tmp_path / rounds.ROUNDS
  log.begin(['a'], {})

  def add(step):
    state = types.SimpleNamespace(step=np.array([step]), params={})
    log.add(state, ['a'], averaged=True, arrived=None)

  add(1)
  path.unlink()
  path.symlink_to('/dev/full')
  with pytest.raises(OSError, match='No space left on device') as error:
    add(2)
  assert error.value.filename == str(path)
