"""A budget is met by real runs, from the digits to the language model."""

import numpy as np
import pytest

from selsync_jax.configs import base, stdlib_gpt
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from tests.support import short_runs
from tests.support.marks import slow


def on_digits():
  return short_runs.config(steps=300, sync__delta=None)


def on_text():
  config = stdlib_gpt.get_config('selsync,smoke')
  config.sync = base.get_config('selsync').sync  # No delta or longest period.
  config.steps = 300
  config.batch_size, config.data.bptt = 4, 32
  config.model.update(num_layers=1, embed_dim=32, num_heads=2, mlp_dim=64)
  return config


@pytest.mark.parametrize('workers', [slow(2), slow(4), 16])
def test_without_a_delta_any_number_of_workers_keeps_nine_of_ten_steps_local(
  workers,
):
  own = {'workers': workers, 'batch_size': 8, 'sync__delta': None}
  config = short_runs.config(steps=128, **own)
  setup = create_setup(check(config))
  rows = short_runs.first_steps(setup, config.steps)
  assert 0.8 < rows[-1]['lssr'] < 0.95
  halves = np.reshape([row['synced'] for row in rows], (2, -1))
  assert (halves.sum(axis=1) > 1).all()


@pytest.mark.slow
@pytest.mark.parametrize(
  'workload, workers, lssr',  # Each pair of values.
  [
    *((on_text, 4, 0.8), (on_text, 16, 0.9), (on_text, 4, 0.95)),
    *((on_digits, 16, 0.8), (on_digits, 4, 0.9), (on_digits, 16, 0.95)),
  ],
)
def test_an_asked_lssr_is_reached_without_a_delta(workload, workers, lssr):
  config = workload()
  config.update(workers=workers, mapper='vmap')
  config.data.backend = 'numpy'
  config.sync.lssr = lssr
  setup = create_setup(check(config))
  rows = short_runs.first_steps(setup, config.steps)
  local = np.array([not row['synced'] for row in rows])
  assert abs(local.mean() - lssr) < 0.03
  quarter = len(local) // 4
  for start in range(quarter, len(local) - quarter + 1):
    assert abs(local[start : start + quarter].mean() - lssr) < 0.12


def test_a_run_sends_what_it_may_and_records_its_threshold(tmp_path):
  budget = 2000.0
  summary = short_runs.run(
    tmp_path / 'run',
    sync__delta=None,
    sync__bytes_per_step=budget,
    steps=100,
    checkpoint__every=100,
    eval__every_epochs=100.0,
  )
  rows = short_runs.rows(tmp_path / 'run')
  average = summary['bytes_per_worker_bsp'] / summary['steps']
  assert budget < 0.7 * average
  sent = summary['bytes_per_worker'] / summary['steps']
  assert abs(sent - budget) < 0.05 * average
  # The first step's change is infinite; the second step's change is the first
  # threshold.
  assert rows[0]['threshold'] == 0
  assert rows[1]['threshold'] == pytest.approx(rows[1]['relative_change'])
  assert rows[2]['threshold'] == rows[1]['threshold']
  ratios = np.diff(np.log([row['threshold'] for row in rows[2:]]))
  synced = np.array([row['synced'] for row in rows[2:-1]])
  assert (ratios[synced] > 0).all() and (ratios[~synced] < 0).all()
