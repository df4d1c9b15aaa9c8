"""Weights that leave a run: the kept ones, and their predictions."""

import json
import os
import random
import shutil
import sys

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors
from safetensors.numpy import load_file

from selsync_jax.__main__ import run_command
from selsync_jax.config import ConfigError, RunError
from selsync_jax.runs import array_files, files, weights
from selsync_jax.simulate import run as simulation
from selsync_jax.training import evaluation
from tests.support import damage, live_runs, short_runs
from tests.support.lines import raises

SHORT = {
  'workers': 3,
  'steps': 25,
  'checkpoint__every': 6,
  'eval__every_epochs': 0.3,
  'schedule__warmup_epochs': 0.0,
  'model__name': 'normalized',
}


def train(workdir, method='local_sgd', **fields):
  return short_runs.run(workdir, method, **SHORT, **fields)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """The workdir of a short run of three workers, and its summary."""
  workdir = tmp_path_factory.mktemp('weights') / 'run'
  return workdir, train(workdir)


# The last is step 25, the newest checkpoints are 18, 24 and 25.
def test_a_checkpoint_gives_the_mean_over_its_workers(run):
  workdir, _ = run
  found = weights.read(workdir, 18).variables
  workers = dict(live_runs.arrays(workdir, 18))
  kernel = workers["['params']['Dense_0']['kernel']"]
  assert len(kernel) == 3 and not (kernel[0] == kernel[1]).all()
  np.testing.assert_allclose(
    found['params']['Dense_0']['kernel'], kernel.mean(0), rtol=1e-5, atol=1e-7
  )
  variance = workers["['model_state']['batch_stats']['BatchNorm_0']['var']"]
  np.testing.assert_allclose(
    found['batch_stats']['BatchNorm_0']['var'], variance.mean(0), rtol=1e-5
  )


@pytest.mark.parametrize('name', ['w.safetensors', 'w.npz'])
def test_readers_of_a_run_may_read_its_weights(run, name, tmp_path):
  workdir, _ = run
  weights.export(workdir, tmp_path / name)
  (kept,) = (workdir / 'weights').glob('25.*')
  modes = {
    path.stat().st_mode
    for path in (workdir / 'config.json', kept, tmp_path / name)
  }
  assert len(modes) == 1


@pytest.mark.parametrize('name', ['w.safetensors', 'w.npz', 'w'])
def test_an_exported_file_holds_what_was_evaluated(run, name, tmp_path, capsys):
  workdir, summary = run
  out, others = tmp_path / name, tmp_path / f'{name}.tmp'
  others.write_text('not ours')
  run_command(['export', str(workdir), f'--out={out}'])
  assert others.read_text() == 'not ours'
  assert capsys.readouterr().out == f'{out}: the weights of step 25\n'
  if out.suffix == '.safetensors':
    flat = load_file(out)
    with safetensors.safe_open(out, 'np') as file:
      about = json.loads(file.metadata()['selsync_jax'])
  elif out.suffix == '.npz':
    flat = dict(np.load(out))
    about = json.loads(str(flat.pop('selsync_jax')))
  else:
    with ocp.StandardCheckpointer() as checkpointer:
      tree = checkpointer.restore(out)
      about = checkpointer.metadata(out).custom_metadata['selsync_jax']
    flat = array_files.flat(tree)
  assert about['step'] == 25 and about['config']['workers'] == 3
  assert about['scores']['validation_loss'] == summary['validation_loss']
  _, variables = weights.load(workdir)
  expected = array_files.flat(variables)
  assert flat.keys() == expected.keys()
  assert 'batch_stats/BatchNorm_0/mean' in flat
  for path, array in expected.items():
    np.testing.assert_array_equal(flat[path], array)
  with pytest.raises(SystemExit):
    run_command(['export', str(workdir), f'--out={out}'])
  line = f'export: --out={out}: exists already; choose another name\n'
  assert capsys.readouterr().err == line


def test_evaluate_repeats_the_scores_of_the_run(run, capsys):
  workdir, summary = run
  for split in ('validation', 'test'):
    step, scores = evaluation.evaluate(workdir, 'last', split)
    assert step == 25 and f'{split}_accuracy' in scores
    for name, score in scores.items():
      assert score == pytest.approx(summary[name], rel=1e-5)
  rows = {row['step']: row for row in live_runs.rows(workdir)}
  step, scores = evaluation.evaluate(workdir, 'best', 'validation')
  losses = {s: row.get('validation_loss', 99) for s, row in rows.items()}
  assert step == min(losses, key=losses.get)
  assert scores['validation_loss'] == pytest.approx(losses[step], rel=1e-5)
  run_command(['evaluate', str(workdir), '--step=best'])
  shown = capsys.readouterr().out
  assert f'step {step}' in shown and f'{losses[step]:.4f}' in shown


@pytest.mark.parametrize(
  'step, out, line',
  [
    (7, 'w.npz', 'step=7: {run} has the weights of steps '),
    ('last', 'w.pt', '--out={tmp}/w.pt: must end in .safetensors or .npz'),
    ('last', 'a/w.npz', '--out={tmp}/a/w.npz: there is no folder {tmp}/a'),
  ],
)
def test_an_impossible_export_is_refused(run, step, out, line, tmp_path):
  with raises(ConfigError, f'{line}...'.format(run=run[0], tmp=tmp_path)):
    weights.export(run[0], tmp_path / out, step)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('kind', sorted(damage.DAMAGES.keys() - {'lost'}))
def test_damaged_weights_are_named_or_taken_from_the_checkpoint(
  run, kind, tmp_path
):
  workdir = tmp_path / 'run'
  shutil.copytree(run[0], workdir)
  intact = weights.read(workdir)
  damage.inflict(workdir / 'weights' / '25.safetensors', kind)
  for one, other in zip(
    jax.tree.leaves(weights.read(workdir).variables),
    jax.tree.leaves(intact.variables),
    strict=True,
  ):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
  shutil.rmtree(workdir / 'checkpoints' / '25')
  with pytest.raises(RunError, match='safetensors is damaged: '):
    weights.read(workdir, 25)


def keep(keeper, step, loss, is_last=False):
  mean = {'params': {'w': np.full(2, loss, np.float32)}}
  stacked = jax.tree.map(lambda x: jax.numpy.asarray(x)[None], mean)
  keeper.keep(step, stacked, {'validation_loss': loss}, is_last)


def test_a_kill_at_any_moment_loses_no_best_weights(tmp_path):
  rng = random.Random(0)
  keeper, losses = weights.Keeper(tmp_path, 0), {}
  (tmp_path / 'config.json').write_text(
    '{"workers": 1, "seed": 0, "sync": {"method": "bsp"}, "data": {"name": "x",'
    '"partition": "seldp"}, "model": {"name": "x"}}'
  )
  for step in range(1, 25):
    losses[step] = rng.choice([rng.random() + 1 / step, float('nan')])
    keep(keeper, step, losses[step])
    saved = step // 5 * 5
    checkpoint = tmp_path / 'checkpoints' / str(saved)
    saving = checkpoint.with_suffix('.orbax-checkpoint-tmp')
    if step == saved:
      saving.mkdir(parents=True)
    if step == saved + 2 and saved:
      saving.rename(checkpoint)
    # A kill here, before or after the end of a save, and then a resume.
    for end in {saved, saved - 5 * saving.exists()}:
      copy = tmp_path.with_name(f'copy-{step}-{end}')
      shutil.copytree(tmp_path, copy)
      weights.Keeper(copy, end)
      before = {s: x for s, x in losses.items() if s <= end and x == x}
      files = [int(p.stem) for p in (copy / 'weights').glob('*')]
      assert not before or min(before, key=before.get) in files
      assert all(s <= end for s in files)
    assert len(list((tmp_path / 'weights').glob('*'))) <= 4
  finite = {s: x for s, x in losses.items() if x == x}
  best = min(finite, key=finite.get)
  assert weights.read(tmp_path, 'best').step == best
  keep(keeper, 25, 9.0, is_last=True)
  assert weights.read(tmp_path).variables['params']['w'][0] == 9
  assert weights.read(tmp_path, 'best').step == best


def test_damaged_weights_are_moved_aside(tmp_path, capsys):
  keep(weights.Keeper(tmp_path, 0), 16, 1.0)
  path, aside = (
    tmp_path / 'weights' / name for name in ('16.safetensors', '16.damaged')
  )
  header = path.read_bytes().replace(b'scores', b'rcores')  # A flipped bit.
  for index, content in enumerate([b'zeros', b'nothing', header]):
    moved = aside.with_suffix(f'.damaged.{index}' if index else '.damaged')
    path.write_bytes(content)
    weights.Keeper(tmp_path, 16)
    assert not path.exists() and moved.read_bytes() == content
    said = capsys.readouterr().err
    assert said.startswith(f'{path} is damaged: ')
    assert said.endswith(f'; moved to {moved}\n')


def test_weights_that_cannot_be_read_stay_where_they_are(tmp_path, capsys):
  path = tmp_path / 'weights' / '16.safetensors'
  path.mkdir(parents=True)
  keeper = weights.Keeper(tmp_path, 16)
  line = f'{path} cannot be read: Is a directory'
  assert capsys.readouterr().err == f'{line}; it is left out\n'
  keep(keeper, 17, 1.0)
  keep(keeper, 18, 0.5)
  assert path.is_dir()
  with raises(RunError, line) as error:
    weights.read_scores(path)
  assert not isinstance(error.value, files.DamagedFile)


@pytest.mark.parametrize('name', ['a/b', '100%', 'a%2Fb', '/'])
def test_names_that_hold_the_separator_come_back(name, tmp_path):
  variables = {'params': {name: {'a': np.ones(2)}, 'a': {'b': np.zeros(1)}}}
  array_files.write_safetensors(tmp_path / 'w.safetensors', variables, {})
  read, _ = array_files.read_variables(tmp_path / 'w.safetensors')
  jax.tree.map(np.testing.assert_array_equal, read, variables)


def test_bfloat16_survives_but_in_npz_where_it_is_float32(tmp_path):
  variables = {'params': {'w': np.arange(3).astype(ml_dtypes.bfloat16)}}
  for name in ('a.safetensors', 'a.npz'):
    array_files.write(tmp_path / name, variables, {})
  read, _ = array_files.read_variables(tmp_path / 'a.safetensors')
  assert read['params']['w'].dtype == ml_dtypes.bfloat16
  array = np.load(tmp_path / 'a.npz')['params/w']
  assert array.dtype == np.float32 and array.tolist() == [0, 1, 2]


@pytest.mark.slow
def test_recomputed_statistics_leave_as_they_were_evaluated(tmp_path):
  summary = train(tmp_path, sync__model_state='recompute')
  _, scores = evaluation.evaluate(tmp_path, 'last', 'test')
  assert scores['test_loss'] == pytest.approx(summary['test_loss'], rel=1e-5)
  with pytest.raises(ConfigError, match='lacks the recomputed batch statis'):
    weights.read(tmp_path, 18)


@pytest.mark.slow
def test_a_moving_average_is_evaluated_and_kept(tmp_path):
  summary = train(tmp_path, ema_decay=0.9)
  kept = weights.read(tmp_path, 25).variables
  (tmp_path / 'weights' / '25.safetensors').unlink()
  from_checkpoint = weights.read(tmp_path, 25).variables
  jax.tree.map(np.testing.assert_array_equal, kept, from_checkpoint)
  workers = dict(live_runs.arrays(tmp_path, 25))
  kernel = workers["['params']['Dense_0']['kernel']"].mean(0)
  assert np.abs(kept['params']['Dense_0']['kernel'] - kernel).max() > 1e-3
  _, scores = evaluation.evaluate(tmp_path, 25, 'test')
  assert scores['test_loss'] == pytest.approx(summary['test_loss'], rel=1e-5)


def test_an_asynchronous_run_has_weights_too(tmp_path):
  config = short_runs.config(
    'asp',
    workers=2,
    steps=6,
    checkpoint__every=3,
    schedule__warmup_epochs=0.0,
    virtual_cluster__compute='constant',
  )
  summary = simulation.simulate(config, tmp_path)
  _, scores = evaluation.evaluate(tmp_path, 'last', 'test')
  assert scores['test_loss'] == pytest.approx(summary['test_loss'], rel=1e-5)
  with pytest.raises(ConfigError, match=r'^step=3: .*no state by worker'):
    weights.read(tmp_path, 3)
  kept = tmp_path / 'weights' / '6.safetensors'
  kept.rename(kept.with_name('2.safetensors'))  # Like a stop at step 6.
  with raises(
    ConfigError,
    f'step=last: {tmp_path}/checkpoints/6 belongs to an asynchronous run, '
    'which saves no state by worker; such a run has the weights of its best '
    'evaluation (step=best) and, once finished, of its last one (step=last)',
  ):
    weights.read(tmp_path)
  assert weights.read(tmp_path, 'best').step == 2
  kept.write_bytes(b'')
  with pytest.raises(RunError, match=r'6\.safetensors is damaged'):
    weights.read(tmp_path)


@pytest.mark.parametrize('name', ['w', 'w.npz', 'w.safetensors'])
@pytest.mark.parametrize('option', ['rw,size=20k', 'ro'])
def test_a_failed_export_leaves_nothing(name, option, small_disk):
  folder = small_disk('1m')
  small_disk.remount(option)
  variables = {'params': {'kernel': np.ones((100, 100), np.float32)}}
  reason = 'Read-only file system' if option == 'ro' else 'No space left'
  with pytest.raises(RunError, match=f'{name}: {reason}'):
    array_files.write(folder / name, variables, {})
  assert not list(folder.iterdir())


def test_a_fifo_is_no_file_of_a_run(tmp_path):
  os.mkfifo(tmp_path / 'config.json')
  with pytest.raises(RunError, match=r'is damaged: .* not a regular'):
    weights.export(tmp_path, tmp_path / 'w.npz')


# Without TensorFlow, without TFDS's copy of the data set, on one device.
PREDICT = """
import sys
for name in ('tensorflow', 'tensorflow_datasets'):
  sys.modules[name] = None
import jax
import numpy as np
import selsync_jax as ss
from selsync_jax.data.sources import digits
test = digits().splits['test']
model, variables = ss.load(sys.argv[1])
image = test['image'].astype(np.float32) / 16
scores = model.apply(variables, image, train=False)
print(jax.device_count(), np.mean(np.argmax(scores, -1) == test['label']))
"""


@pytest.mark.slow
def test_any_process_loads_a_run_of_four_workers(default_run, tmp_path):
  done = live_runs.run(
    *(sys.executable, '-W', 'error', '-c', PREDICT, default_run.workdir),
    env=os.environ | {'TFDS_DATA_DIR': str(tmp_path / 'nothing')},
  )
  assert done.returncode == 0, done.stderr
  devices, accuracy = done.stdout.split()
  summary = json.loads((default_run.workdir / 'summary.json').read_text())
  assert devices == '1'
  assert float(accuracy) == pytest.approx(summary['test_accuracy'], abs=1e-6)
