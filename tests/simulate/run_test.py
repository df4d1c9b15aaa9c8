"""Runs on the virtual clock: their files, and how they resume."""

import json
import random
import shutil

import numpy as np
import pytest

from selsync_jax.config import ConfigError
from selsync_jax.report import run_page
from selsync_jax.runs import history
from selsync_jax.simulate.asynchronous import ASYNCHRONOUS
from selsync_jax.simulate.run import simulate
from tests.support import live_runs
from tests.support.marks import slow_but
from tests.support.short_runs import config, rows
from tests.support.shown import figure, section, table

STEPS, SAVED = 8, 4
CLUSTER = {
  'virtual_cluster__compute': 'delays',
  'virtual_cluster__bandwidth': '100Mbit',
  'virtual_cluster__latency': '1ms',
}
FIELDS = {'steps': STEPS, 'checkpoint__every': SAVED}


def run(workdir, method, **fields):
  return simulate(config(method, **(CLUSTER | FIELDS | fields)), workdir)


@pytest.fixture(scope='module')
def asp(tmp_path_factory):
  """The folder of a finished run of ASP."""
  workdir = tmp_path_factory.mktemp('asp') / 'run'
  run(workdir, 'asp')
  return workdir


def test_a_row_says_what_the_clock_says(asp):
  summary = json.loads((asp / 'summary.json').read_text())
  each = rows(asp)
  assert [row['step'] for row in each] == list(range(1, STEPS + 1))
  seconds = [row['virtual_seconds'] for row in each]
  assert (
    seconds == sorted(seconds) and summary['virtual_seconds'] == seconds[-1]
  )
  ages = [age for row in each for age in row['staleness']]
  assert len(ages) == 4 * STEPS
  assert summary['staleness'] == pytest.approx(np.mean(ages))
  assert all(len(row['version']) == len(row['waited']) == 4 for row in each)
  assert max(each[-1]['version']) <= 4 * STEPS
  assert not {'lssr', 'synced', 'relative_change'} & {*each[0], *summary}


def test_an_average_that_the_next_update_undoes_is_refused(tmp_path):
  free = {'optimizer__name': 'schedule_free_sgd', 'optimizer__momentum': None}
  line = "name='schedule_free_sgd': holds .* such as .*z/.* eager does not"
  with pytest.raises(ConfigError, match=line):
    run(tmp_path / 'eager', 'eager', **free)
  assert not (tmp_path / 'eager').exists()


def test_the_spans_of_a_worker_follow_one_another(asp):
  spans = [span for row in rows(asp) for span in row['spans']]
  assert {kind for _, kind, *_ in spans} == {'compute', 'communicate'}
  for worker in range(4):
    own = [span for span in spans if span[0] == worker]
    ends = [ended for *_, ended, _ in own]
    assert [began for _, _, began, *_ in own] == [0.0, *ends[:-1]]


def test_the_page_shows_the_clock(asp, tmp_path):
  page = run_page.write([asp], tmp_path).read_text()
  shown, (simulated,) = table(page, 'summary'), history.read_all([asp])
  assert shown['virtual seconds'] == simulated.outcome['virtual_seconds']
  assert 'virtual time (seconds)' in section(page, 'loss')
  for name in ('timeline', 'staleness'):
    assert figure(page, name)['data']
  assert 'id="changes"' not in page


@pytest.mark.parametrize(
  'method', slow_but(['eager'], [*ASYNCHRONOUS, 'selsync'])
)
def test_a_resumed_simulation_ends_with_the_same_bits(method, tmp_path):
  whole, halted = tmp_path / 'whole', tmp_path / 'halted'
  run(whole, method)
  shutil.copytree(whole, halted)
  live_runs.go_back(halted, SAVED)
  run(halted, method)
  states = [live_runs.arrays(workdir, STEPS) for workdir in (whole, halted)]
  for (name, one), (_, other) in zip(*states, strict=True):
    assert one.tobytes() == other.tobytes(), name
  real = {'seconds', 'samples_per_second'}
  for one, other in zip(rows(whole), rows(halted), strict=True):
    assert {k: one[k] for k in one if k not in real} == {
      k: other[k] for k in other if k not in real
    }


@pytest.mark.slow
def test_a_killed_simulation_ends_as_if_it_had_not_been(tmp_path):
  whole, killed = (
    live_runs.simulation('prague', tmp_path / name) for name in ('w', 'k')
  )
  live_runs.finish(whole)
  rng = random.Random(0)
  live_runs.kill_at(killed, tmp_path / 'k', 20, rng.uniform(0, 0.5), rng)
  assert 0 < len(rows(tmp_path / 'k')) < live_runs.STEPS
  live_runs.finish(killed)
  assert live_runs.differences(tmp_path / 'w', tmp_path / 'k') == []


def test_a_simulation_is_no_continuation_of_a_real_run_nor_of_other_workers(
  asp,
):
  for fields, message in (
    ({'workers': 2}, 'config.workers=2: must be 4, as in'),
    (
      {'virtual_cluster__delay': 0.5},
      'virtual_cluster.delay was None, now 0.5',
    ),
    ({'on_nonfinite': 'skip'}, "config.on_nonfinite='skip': must be stop"),
    ({'ema_decay': 0.9}, 'config.ema_decay=0.9: must be None'),
    ({'mapper': 'mesh', 'mesh__data': 2}, 'of a simulation has one device'),
  ):
    with pytest.raises(ConfigError, match=message):
      run(asp, 'asp', **fields)
  assert json.loads((asp / 'config.json').read_text())['workers'] == 4


def test_a_command_that_finds_a_finished_simulation_writes_nothing(asp):
  before = live_runs.contents(asp)
  run(asp, 'asp', steps=SAVED)
  assert live_runs.contents(asp) == before


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
  with pytest.raises(Exception, match='the loss of worker'):
    run(
      tmp_path,
      'asp',
      optimizer__learning_rate=1e30,
      optimizer__clip_norm=None,
      schedule__warmup_epochs=0.0,
    )
