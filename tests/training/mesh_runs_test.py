"""Runs of workers with several devices: over processes, stopped, resumed."""

import functools
import json
import shutil
import sys

import jax
import numpy as np
import pytest

from selsync_jax.runs import weights
from tests.support import emulated, live_runs

LAYOUT = ('--config.mapper=mesh', '--config.workers=2', '--config.mesh.fsdp=4')
STEPS = 20
OTHERS = (
  f'--config.steps={STEPS}',
  '--config.checkpoint.keep=99',
  '--config.sync.delta=0.1',
)


def run(processes, folder, *flags):
  live_runs.finish(
    live_runs.command('selsync', processes, folder, *OTHERS, *flags)
  )
  return folder


@pytest.fixture(scope='module')
def alone(tmp_path_factory, data_dir):
  """Two workers of four devices each, in one process."""
  del data_dir
  return run(1, tmp_path_factory.mktemp('alone') / 'run', *LAYOUT)


def assert_same(one, other):
  """Asserts equal flags, losses and scores to 1e-6, and weights to 1e-4."""
  left, right = live_runs.rows(one), live_runs.rows(other)
  assert [r['synced'] for r in left] == [r['synced'] for r in right]
  close = np.testing.assert_allclose
  close([r['loss'] for r in left], [r['loss'] for r in right], atol=2e-6)
  kept, others = (weights.read(run, weights.LAST) for run in (one, other))
  assert kept.step == others.step == STEPS
  loss = kept.scores['validation_loss']
  close(loss, others.scores['validation_loss'], atol=2e-6)
  near = functools.partial(close, atol=1e-4)
  jax.tree.map(near, kept.variables, others.variables)


@pytest.mark.slow
@pytest.mark.parametrize('processes', [2, 4])
def test_a_worker_is_a_process_or_spans_several(alone, processes, tmp_path):
  assert_same(alone, run(processes, tmp_path / 'run', *LAYOUT))


@pytest.mark.slow
def test_a_group_can_have_workers_of_several_processes(tmp_path):
  folder = tmp_path / 'run'
  live_runs.finish(
    live_runs.command('groups', 2, folder, f'--config.steps={STEPS}', *LAYOUT)
  )
  assert len(live_runs.rows(folder)) == STEPS


@pytest.mark.slow
def test_a_run_continues_with_another_layout(alone, tmp_path):
  folder = run(1, tmp_path / 'run', *LAYOUT, '--config.steps=10')
  wide = ('--config.mapper=mesh', '--config.workers=2', '--config.mesh.data=2')
  assert_same(alone, run(2, folder, *wide))


@pytest.mark.slow
@pytest.mark.parametrize('rule', ['mean', 'clone'])
def test_another_number_of_workers_continues_like_with_one_device_each(
  alone, rule, tmp_path
):
  begun = shutil.copytree(alone, tmp_path / 'one device')
  live_runs.go_back(begun, 15)
  again = shutil.copytree(begun, tmp_path / 'two devices')
  four = ('--config.workers=4', f'--config.checkpoint.resize={rule}')
  mesh = ('--config.mapper=mesh', '--config.mesh.fsdp=2')
  assert_same(run(1, begun, *four), run(2, again, *four, *mesh))


@pytest.mark.slow
def test_a_host_of_four_devices_sends_the_model_once(tmp_path):
  if reason := emulated.missing():
    pytest.skip(reason)
  out = tmp_path / 'wires.json'
  # A network that is faster than the benchmark's carries the same bytes.
  flags = '--hosts=2', '--devices=4', '--rounds=1', '--bandwidth=1gbit'
  command = [sys.executable, '-m', 'benchmarks.network.wires', *flags]
  live_runs.finish([*command, f'--out={out}'])
  rows = json.loads(out.read_text())['rows']
  assert rows.keys() == {'2x1x1', '2x4x1', '2x2x2', '2x1x4'}
  for row in rows.values():
    assert row['named'] <= row['sent'] <= 1.1 * row['named']
