"""Runs read back from disk, and the one reader of their files."""

import json

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from selsync_jax.config import ConfigError, RunError
from selsync_jax.configs import digits
from selsync_jax.report.comparison_table import read_entries
from selsync_jax.runs import files, history, records
from selsync_jax.runs.history import Trial
from tests.support import damage, recorded
from tests.support.lines import raises


def test_a_folder_without_a_run_is_refused(tmp_path):
  with pytest.raises(ConfigError, match='not the workdir of a run, no config'):
    history.read(tmp_path)
  (tmp_path / 'config.json').write_text(digits.get_config().to_json())
  (tmp_path / 'metrics.jsonl').write_text('{"step"')
  with pytest.raises(ConfigError, match='has not logged a step yet'):
    history.read(tmp_path)


def test_a_summary_of_fewer_steps_is_from_an_earlier_session(tmp_path):
  workdir = tmp_path / 'longer'
  recorded.write_run(workdir, recorded.random_changes(30, 2))
  for steps in (31, 30, 20):  # With 31, the last row is lost.
    summary = recorded.summary(steps)
    (workdir / 'summary.json').write_text(json.dumps(summary))
    outcome = history.read(workdir).summary
    assert outcome == (None if steps == 20 else summary)
  trial = Trial('bsp', 0.1, 0, workdir, [], digits.get_config())
  with pytest.raises(RunError, match=r'longer: the summary covers fewer st'):
    read_entries([trial])


def test_a_run_that_ends_while_it_is_read_has_not_finished(
  tmp_path, monkeypatch
):
  workdir = tmp_path / 'live'
  recorded.write_run(workdir, recorded.random_changes(30, 2))
  summary = workdir / 'summary.json'

  def read_metrics(workdir, read=records.read_metrics):
    rows = read(workdir)
    summary.write_text(json.dumps(recorded.summary(40)))
    return rows

  monkeypatch.setattr(records, 'read_metrics', read_metrics)
  run = history.read(workdir)
  assert run.summary is None and run.columns['step'][-1] == 30


def test_a_column_that_no_row_has_is_nan(tmp_path):
  recorded.write_run(tmp_path / 'run', recorded.random_changes(3, 2))
  run = history.read(tmp_path / 'run')
  assert np.isnan(run.columns['nothing']).tolist() == [True] * 3


@pytest.fixture
def finished(tmp_path):
  """The folder of a run with all its files."""
  workdir = tmp_path / 'run'
  recorded.write_run(workdir, recorded.random_changes(3, 2))
  (workdir / 'summary.json').write_text(json.dumps(recorded.summary(3)))
  (workdir / 'data.json').write_text('{"labels": [[1, 2], [2, 1]]}')
  return workdir


# These leave a line of JSON with the right shape, or no file, so a reader sees
# no damage.
UNSEEN = {'lost', 'flipped bit'}


@pytest.mark.parametrize('kind', sorted(damage.DAMAGES.keys() - UNSEEN))
@pytest.mark.parametrize('name', ['config.json', 'summary.json', 'data.json'])
def test_a_damaged_file_is_named_in_one_line(name, kind, finished):
  damage.inflict(finished / name, kind)
  repair = 'repeat the command of this run to repair it'
  line = f'{finished / name} is damaged: ...; {repair}'
  with raises(RunError, line) as error:
    history.read(finished)
  assert len(str(error.value)) < 300


@pytest.mark.parametrize(
  'line',
  [
    b'{"step": 2, "lo{"step": 2}',
    bytes(40),
    b'null',
    b'[]',
    b'{"step": "2"}',
    b'{"step": true}',
    damage.DEEP,
    b'\xff\xfe',
    b'',
  ],
  ids=lambda line: repr(line[:12]),
)
def test_a_damaged_line_is_left_out_and_said(line, finished, capsys):
  path = finished / 'metrics.jsonl'
  one, _, *rest = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b''.join([one, line + b'\n', *rest]))
  assert [row['step'] for row in history.read(finished).rows] == [1, 3]
  assert capsys.readouterr().err == (f'{path}: 1 damaged line is left out\n')


def test_a_line_that_is_repeated_or_a_crash_cut_off_is_not_damaged(
  finished, capsys
):
  path = finished / 'metrics.jsonl'
  one, *rest = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b''.join([one, one, *rest, b'{"step": 4, "lo']))
  assert [row['step'] for row in history.read(finished).rows] == [1, 2, 3]
  assert not capsys.readouterr().err


def test_a_table_of_labels_has_rows_of_one_length(finished):
  (finished / 'data.json').write_text('{"labels": [[1, 2], [3]]}')
  with pytest.raises(RunError, match='labels is not a table'):
    history.read(finished)


SCALARS = st.none() | st.booleans() | st.integers() | st.text()


@pytest.mark.slow
@given(
  st.recursive(SCALARS, lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_where_any_value_may_stand_every_value_is_read(value):
  assert files.parse(json.dumps([value]).encode(), list) == [value]


def test_a_bool_is_no_number():
  with pytest.raises(ValueError, match='Expected'):
    files.parse(b'[true]', list[float])
