"""Runs of a model in flax nnx, next to runs of the same model in linen."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

import selsync_jax as ss
from selsync_jax.__main__ import run_command
from selsync_jax.commands import config_file
from selsync_jax.data import bind_data, open_data
from selsync_jax.training import start
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from selsync_jax.training.train import train_and_evaluate
from tests.support import live_runs
from tests.support.marks import slow

CONFIG = 'tests/support/two_styles.py'
STYLES = 'InLinen', 'InNnx'


pytestmark = pytest.mark.usefixtures('data_dir')  # Found by the environment.


def config(*flags, style='InNnx'):
  given = '--config.data.backend=numpy', f'--config.model.name={style}', *flags
  return config_file.load(str(live_runs.ROOT / CONFIG), given)


MAPPERS = {
  'pmap': ('--config.mapper=pmap',),
  'mesh': ('--config.mapper=mesh', '--config.mesh.fsdp=2'),
}


def steps(*flags, style):
  """The flags and losses of twelve steps."""
  setup = create_setup(check(config(*flags, style=style)))
  state, step = start.init(setup), setup.train_step()
  synced, losses = [], []
  for batch in setup.problem.data.batches(setup.mapper.local, 0, 12):
    state, metrics = step(state, batch)
    synced.append(bool(np.asarray(metrics['synced'])[0]))
    losses.append(np.asarray(metrics['loss']))
  return synced, losses


@pytest.mark.parametrize('mapper', ['pmap', slow('mesh')])
def test_the_losses_equal_linens(mapper):
  flags = *MAPPERS[mapper], '--config.workers=2', '--config.sync.delta=0.03'
  linen, nnx = (steps(*flags, style=style) for style in STYLES)
  assert nnx[0] == linen[0] and 1 < sum(nnx[0]) < 12
  np.testing.assert_allclose(nnx[1], linen[1], atol=1e-6, rtol=0)


def on_two_processes(workdir):
  delta = '--config.sync.delta=0.03'
  return live_runs.command('selsync', 2, workdir, delta, config=CONFIG)


def on_a_virtual_cluster(workdir):
  return live_runs.simulation('asp', workdir, config=CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize('command', [on_two_processes, on_a_virtual_cluster])
def test_metrics_of_processes_and_a_virtual_cluster_equal_linens(
  command, tmp_path
):
  for style in STYLES:
    flags = f'--config.model.name={style}', '--config.steps=20'
    live_runs.finish([*command(tmp_path / style), *flags])
  linen, nnx = (live_runs.rows(tmp_path / style) for style in STYLES)
  assert len(nnx) == len(linen) == 20
  for name in ('synced', 'loss', 'validation_loss'):
    one, other = ([r.get(name, 0) for r in rows] for rows in (linen, nnx))
    np.testing.assert_allclose(one, other, atol=1e-6, rtol=0, err_msg=name)


@pytest.mark.slow
def test_a_resumed_run_ends_as_if_it_had_not_been(tmp_path, capsys):
  """With dropout, whose keys depend only on seed, worker and step."""
  _, *flags = live_runs.FLAGS  # Without the report, which `train` writes.
  flags += '--config.mapper=vmap', '--config.model.dropout=0.2'
  train_and_evaluate(config(*flags), tmp_path / 'alone')
  halted = shutil.copytree(tmp_path / 'alone', tmp_path / 'halted')
  live_runs.go_back(halted, 60)
  train_and_evaluate(config(*flags), halted)
  assert 'resuming from step 60' in capsys.readouterr().out
  assert live_runs.differences(tmp_path / 'alone', halted) == []


@pytest.mark.slow
def test_a_run_is_resized_exported_loaded_and_scored(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  one_device = '--config.mapper=vmap'
  train_and_evaluate(config(one_device, '--config.steps=4'), tmp_path / 'run')
  resized = config(one_device, '--config.steps=6', '--config.workers=2')
  summary = train_and_evaluate(resized, tmp_path / 'run')
  assert 'with 2 workers instead of 4' in capsys.readouterr().out
  data = open_data(
    bind_data(resized.data.to_dict()), workers=1, batch_size=8, seed=0
  )
  (batch,) = data.evaluation('test', 360, [0], 1)
  model, variables = ss.load(tmp_path / 'run')
  scores = model.apply(variables, batch['image'][0], train=False)
  right = np.mean(np.argmax(scores, -1) == batch['label'][0])
  assert right == pytest.approx(summary['test_accuracy'])
  module = model.to_nnx(variables)
  module.eval()
  np.testing.assert_array_equal(module(batch['image'][0]), scores)
  run_command(['export', 'run', '--out=w.safetensors'])
  np.testing.assert_array_equal(
    load_file('w.safetensors')['params/hidden/0/kernel'],
    variables['params']['hidden']['0']['kernel'],
  )
  capsys.readouterr()
  run_command(
    ['evaluate', 'run', f'--config={live_runs.ROOT / CONFIG}', '--split=test']
  )
  assert f'{summary["test_accuracy"]:.4f}' in capsys.readouterr().out
