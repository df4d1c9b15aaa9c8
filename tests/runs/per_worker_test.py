"""Values per worker: the part kept in a row, and the file beside it."""

import json

import numpy as np
import pytest

from selsync_jax.report import run_page
from selsync_jax.runs import history, per_worker, records
from selsync_jax.simulate.run import simulate
from tests.support import damage, recorded, short_runs

MANY = {
  'workers': 256,
  'batch_size': 4,
  'steps': 3,
  'log__every': 1,
  'checkpoint__every': 3,
}


def train(workdir):
  short_runs.run(workdir, **MANY)


def simulate_asp(workdir):
  config = short_runs.config('asp', **MANY, virtual_cluster__compute='delays')
  simulate(config, workdir)


@pytest.mark.slow
@pytest.mark.parametrize('start', [train, simulate_asp])
def test_a_row_of_256_workers_has_less_than_a_kilobyte(start, tmp_path):
  start(tmp_path)
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert len(lines) == MANY['steps']
  assert max(map(len, lines)) < 1000
  for line, values in zip(lines, short_runs.rows(tmp_path), strict=True):
    row = json.loads(line)
    quantiles = {k for k in row if k.endswith('_quantiles')}
    assert quantiles
    for name in quantiles:
      each = np.sort(values[name.removesuffix('_quantiles')])
      assert len(each) == 256
      shown = [np.inf if q is None else q for q in row[name]]
      cuts = each[[0, 64, 128, 191, 255]]  # 255 gaps; 127.5 rounds to 128.
      assert np.float32(shown).tolist() == np.float32(cuts).tolist()


def test_values_are_read_back_as_they_were():
  row = {
    'step': 7,
    'relative_changes': np.float32([0.1, np.inf, np.nan]),
    'staleness': [],
    'version': [2**31 - 1, 0],
    'waited': [0.5],
    'spans': [(1, 'communicate', 0.1, 1 / 3, 4)],
  }
  texts = per_worker.encode(per_worker.arrays(row))
  back = per_worker.parse(json.dumps({'step': 7, **texts}).encode())
  assert {k: str(np.asarray(v).tolist()) for k, v in back.items()} == {
    k: str(np.asarray(v).tolist() if k != 'spans' else v)
    for k, v in row.items()
  }
  assert per_worker.quantiles(per_worker.arrays(row)) == {
    'relative_changes_quantiles': [0.1, 0.1, 0.1, np.inf, np.inf],
    'staleness_quantiles': [],
    'version_quantiles': [0, 0, 0, 2**31 - 1, 2**31 - 1],
    'waited_quantiles': [0.5] * 5,
  }


@pytest.mark.parametrize('workers', [2, 40])
@pytest.mark.parametrize('kind', damage.DAMAGES)
def test_damage_costs_values_and_one_line_and_the_report_is_drawn(
  kind, workers, tmp_path, capsys
):
  workdir = tmp_path / 'run'
  recorded.write_run(workdir, recorded.random_changes(6, workers))
  whole = history.read(workdir).changes
  damage.inflict(workdir / 'workers.jsonl', kind)
  run = history.read(workdir)
  lost = np.isnan(run.changes).all(axis=1)
  assert run.changes.shape[0] == 6 and lost.any()
  np.testing.assert_array_equal(run.changes[~lost], whole[~lost])
  assert capsys.readouterr().err == (
    f'{workdir}/workers.jsonl: the values of {lost.sum()} of 6 steps are lost '
    'or damaged; figures leave them out\n'
  )
  if kind in ('lost', 'flipped bit'):
    run_page.write([workdir], workdir)


def test_a_row_is_written_after_its_values(tmp_path, monkeypatch):
  """A run that is read while it trains has the values of all its rows."""
  appended = []
  monkeypatch.setattr(
    records.Lines, 'append', lambda _, row: appended.append(row)
  )
  with records.Rows(tmp_path, 0) as file:
    file.write({'step': 1, 'relative_changes': [0.5], 'loss': 1.0})
  assert ['loss' in row for row in appended] == [False, True]
