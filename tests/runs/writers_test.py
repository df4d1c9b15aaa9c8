"""Destinations of a run's rows."""

import json
import subprocess
import sys

import pytest

from selsync_jax.runs import records
from tests.support import recorded
from tests.support.recorded import events


def test_tensorboard_reads_every_number(tmp_path):
  recorded.write_rows(tmp_path, recorded.ROWS)
  assert events(tmp_path) == {
    'step': [(1, 1), (2, 2), (3, 3)],
    'loss': [(1, 1), (2, 0.5), (3, pytest.approx(1 / 3))],
    'relative_change': [(1, float('inf')), (2, 0.25), (3, 0.25)],
    'synced': [(1, 1), (2, 0), (3, 0)],
    'validation_accuracy': [(3, 0.75)],
    **{
      name: [(row['step'], pytest.approx(row[name])) for row in recorded.ROWS]
      for name in recorded.totals(1, workers=2, syncs=1)
    },
  }


def test_a_line_of_json_has_quantiles_of_what_each_worker_measured(tmp_path):
  recorded.write_rows(tmp_path, recorded.ROWS)
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  quantiles = [0.125, 0.125, 0.125, 0.25, 0.25]
  short = [dict(row) for row in recorded.ROWS]
  for row in short:
    del row['relative_changes']
  assert [json.loads(line) for line in lines] == [
    row
    | {'relative_change': None if row['step'] == 1 else 0.25}
    | {'relative_changes_quantiles': quantiles}
    for row in short
  ]


def test_a_run_that_resumes_has_the_steps_it_takes_again_once(tmp_path):
  recorded.write_rows(tmp_path, recorded.ROWS)
  recorded.write_rows(tmp_path, recorded.ROWS[1:])
  assert len(records.read_metrics(tmp_path)) == 3
  assert [step for step, _ in events(tmp_path)['loss']] == [1, 2, 3]


NO_TENSORFLOW = """
import pathlib, sys
from tests.support import recorded
recorded.write_rows(pathlib.Path(sys.argv[1]), [{'step': 1, 'loss': 0.5}])
assert 'tensorflow' not in sys.modules
"""


def test_an_event_file_is_written_without_tensorflow(tmp_path):
  subprocess.run([sys.executable, '-c', NO_TENSORFLOW, tmp_path], check=True)
  assert events(tmp_path) == {'step': [(1, 1)], 'loss': [(1, 0.5)]}
