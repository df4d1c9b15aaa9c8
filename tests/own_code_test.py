"""Models, data sets and tasks in users' files, from start to end."""

import json
import os
import pathlib
import sys
import textwrap

import flax.linen as nn
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax import methods, models
from selsync_jax.__main__ import run_command
from selsync_jax.commands import compare, config_file, train
from selsync_jax.config import ConfigError, RunError
from selsync_jax.data import bind_data, from_arrays, from_huggingface, open_data
from selsync_jax.data.sources import DATASETS
from selsync_jax.report import facts, run_page
from selsync_jax.runs import history, provenance
from selsync_jax.training.train import train_and_evaluate
from tests.support import live_runs, short_runs
from tests.support.lines import raises
from tests.support.session import ROOT

RINGS = ROOT / 'docs' / 'recipes' / 'rings.py'


def test_the_example_is_trained_resumed_exported_and_scored(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  flags = [f'--config={RINGS}', '--config.mapper=vmap', '--config.batch_size=8']

  def run(steps):
    options = train.parse([*flags, f'--config.steps={steps}'])
    workdir = options.workdir
    return workdir, train_and_evaluate(options.settings, workdir)

  run(3)
  workdir, summary = run(40)
  assert workdir == pathlib.Path('runs/rings-selsync')
  assert 'resuming from step 3' in capsys.readouterr().out
  assert summary['test_accuracy'] > 0.55
  first, second = provenance.sessions(workdir)
  assert (first['step'], second['step']) == (0, 3)
  assert first['began'] <= second['began']
  assert '; session 2, from step 3; ' in facts.origin(history.read(workdir))

  model, variables = ss.load(workdir)
  points = np.array([[0.9, 0.0], [0.0, -2.1]], np.float32)
  assert model.apply(variables, points, train=False).shape == (2, 2)
  del models.MODELS['TwoLayers'], DATASETS['rings']
  with pytest.raises(
    ConfigError, match="'TwoLayers': this model is not registered here"
  ):
    ss.load(workdir)
  run_command(['export', str(workdir), '--out=w.npz'])  # Needs no model.
  assert 'params/Dense_0/kernel' in np.load('w.npz')
  run_command(['evaluate', str(workdir), f'--config={RINGS}', '--split=test'])
  assert f'{summary["test_accuracy"]:.4f}' in capsys.readouterr().out


@pytest.mark.slow
def test_the_example_is_compared_and_reported(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  out = pathlib.Path('compared')
  compare.main(
    [
      *(f'--config={RINGS}', '--config.mapper=vmap', '--config.steps=3'),
      '--methods=selsync+data.noise=0.4+model.width=4,bsp',
      *('--seeds=1', f'--out={out}'),
    ],
    run=lambda trial: train_and_evaluate(trial.config, trial.workdir),
  )
  assert 'noise 0.4, width 4' in (out / 'comparison.md').read_text()
  (workdir, *_) = [path.parent for path in out.rglob('summary.json')]
  assert 'rings' in run_page.write([workdir], workdir).read_text()


@pytest.mark.slow
def test_every_process_of_a_run_has_what_the_file_registers(tmp_path):
  done = live_runs.run(
    *(sys.executable, '-m', 'selsync_jax', 'launch', '--processes=2', '--'),
    *(sys.executable, '-m', 'selsync_jax', 'train', f'--config={RINGS}'),
    *('--config.steps=3', '--noreport', f'--workdir={tmp_path / "run"}'),
    cwd=tmp_path,
    env=os.environ,
  )
  assert done.returncode == 0, done.stderr
  sessions = json.loads((tmp_path / 'run' / 'run.json').read_text())
  assert sessions[0]['devices']['processes'] == 2


OPENING = """
import flax.linen as nn
import numpy as np
import selsync_jax as ss
from selsync_jax import data
from selsync_jax.configs import base


def points(count):
  return {'x': np.ones((count, 2)), 'y': np.arange(count) % 2}


def get_config(method='bsp'):
  config = base.get_config(method)
  config.update(steps=2, workers=2, mapper='vmap', batch_size=4)
  config.data.name = 'mine'
  config.model.name = 'Mine'
  return config
"""
DATA = """
@ss.register_dataset
def mine(*, size: int = 9):
  return data.from_arrays(
    train=points(size), validation=points(4), test=points(4), task='mine',
    num_classes=2,
  )
"""
MODEL = """
@ss.register_model
class Mine(nn.Module):
  num_outputs: int
  @nn.compact
  def __call__(self, x, *, train):
    return nn.Dense(self.num_outputs)(x)
"""
NNX = """
from flax import nnx
@ss.register_model
class Mine(nnx.Module):
  def __init__(self, num_outputs, *, rngs):
    self.scores = nnx.Linear(2, num_outputs, rngs=rngs)

  def __call__(self, x):
    return self.scores(x)
"""
TASK = """
import optax
@ss.register_task('x', main='f1_score', higher=['f1_score'])
def mine(scores, batch):
  loss = optax.softmax_cross_entropy_with_integer_labels(scores, batch['y'])
  return {'loss': loss, 'f1_score': -loss}
"""
METHOD = """
@ss.register_method
def mine(context, *, period: int = 0):
  return 8 // period

def get_config(default=get_config):
  return default('mine')
"""


def file_of(folder, *parts):
  path = folder / 'mine.py'
  path.write_text(OPENING + '\n'.join(parts))
  return path


def test_a_custom_task_is_trained_and_ranked(tmp_path):
  config = config_file.load(str(file_of(tmp_path, DATA, MODEL, TASK)), ())
  summary = train_and_evaluate(config, tmp_path / 'run')
  run = history.read(tmp_path / 'run')
  assert run.metric == 'f1_score'
  assert run.rank() == summary['validation_f1_score']


def test_a_custom_method_is_trained_and_planned_with_its_own_field(
  tmp_path, capsys, refused
):
  strategy = 'ss.Strategy(ss.every(period), ss.mean())'
  method = METHOD.replace('= 0', '= 3').replace('8 // period', strategy)
  method, *_ = method.partition('def get_config')
  path = f'{file_of(tmp_path, method, DATA, MODEL, TASK)}:mine'
  for flags, steps in (((), [3]), (('--config.sync.period=2',), [2, 4])):
    config = config_file.load(path, ['--config.steps=5', *flags])
    train_and_evaluate(config, tmp_path / f'{len(steps)}')
    rows = live_runs.rows(tmp_path / f'{len(steps)}')
    assert [row['step'] for row in rows if row['synced']] == steps
  run_command(['plan', f'--config={path}', '--lssr=0.9', '--steps=3'])
  assert '\nmine ' in capsys.readouterr().out
  assert 'perod' in refused(
    'train', f'--config={path}', '--config.sync.perod=2'
  )


WRONG = {
  **{
    f'name of a {kind}': (
      [text.format(name)],
      f"{kind} '{name}' in {{file}}: selsync_jax has registered this name",
    )
    for kind, name, text in (
      ('data set', 'digits', '@ss.register_dataset\ndef {}(): pass'),
      ('model', 'linear', '@ss.register_model\nclass {}(nn.Module): pass'),
      ('method', 'bsp', '@ss.register_method\ndef {}(context): pass'),
      ('task', 'regression', "@ss.register_task('x')\ndef {}(y, b): pass"),
    )
  },
  'error in data': (
    ['@ss.register_dataset\ndef mine():\n  return 1 / 0', MODEL, TASK],
    'config.data: {file}:21: ZeroDivisionError: division by zero',
  ),
  'no data': (
    ['@ss.register_dataset\ndef mine(): return [1]', MODEL, TASK],
    "config.data.name='mine': must return data.from_arrays(...) or another of "
    'data.from_*, got a list',
  ),
  'empty split': (
    [DATA.replace('points(size)', 'points(0)'), MODEL, TASK],
    'config.data: {file}:22: ValueError: train has x (0, 2), y (0,): must be '
    'arrays of one length above 0',
  ),
  'error in augment': (
    [
      DATA.replace('=2,', "=2, augment=lambda batch, key: batch['z'],"),
      *(MODEL, TASK),
    ],
    "config.data: {file}:24: KeyError: 'z'",
  ),
  'no such task': (
    [DATA.replace("'mine'", "'ours'"), MODEL],
    "config.data: 'ours' is not one of classification, language_modeling, "
    'regression',
  ),
  'another task': (
    [DATA.replace("'mine'", "'regression'"), MODEL],
    "config.data: task regression reads 'features', but a batch has x, y, mask",
  ),
  'error in model': (
    [DATA, MODEL.replace('nn.Dense', 'nn.Dance'), TASK],
    'config.model: {file}:33: AttributeError: module ',
  ),
  'no model': (
    [DATA, '@ss.register_model\ndef Mine(num_outputs): return {}', TASK],
    'config.model: {file}: TypeError: must return a module of flax linen, or '
    'take rngs and return one of flax nnx, got a dict',
  ),
  'no nnx model': (
    [DATA, '@ss.register_model\ndef Mine(num_outputs, rngs): return {}', TASK],
    'config.model: {file}: TypeError: must return a module of flax nnx, got a '
    'dict',
  ),
  'error in nnx model': (
    [DATA, NNX.replace('nnx.Linear', 'nnx.Lines'), TASK],
    'config.model: {file}:32: AttributeError: Module flax.nnx has no attribute',
  ),
  'error in method': (
    [METHOD, DATA, MODEL, TASK],
    'config.sync: {file}:22: ZeroDivisionError: integer division or modulo by',
  ),
  'no strategy': (
    [METHOD.replace('= 0', '= 2'), DATA, MODEL, TASK],
    'config.sync: {file}: TypeError: must return a Strategy, got 4',
  ),
  'error in task': (
    [DATA, MODEL, TASK.replace("['y']", "['label']")],
    "config.data: task mine reads 'label', but a batch has x, y, mask",
  ),
}


@pytest.mark.parametrize('case', WRONG)
def test_a_mistake_is_one_line_with_its_place(case, tmp_path, refused):
  parts, line = WRONG[case]
  path = file_of(tmp_path, *parts)
  error = refused(
    'simulate', f'--config={path}', f'--workdir={tmp_path / "run"}'
  )
  assert error.startswith(f'simulate: {line.format(file=path)}')
  assert not (tmp_path / 'run').exists()


FAILING = """
calls = []

def fail(batch, key):
  calls.append(key)
  if len(calls) > 3:
    raise RuntimeError('boom')
  return batch
"""


def test_an_error_in_a_run_is_one_line_and_its_traceback_is_kept(tmp_path):
  data = DATA.replace('=2,', '=2, augment=fail,')
  path = file_of(tmp_path, FAILING, data, MODEL, TASK)
  path.write_text(path.read_text().replace('steps=2', 'steps=9'))
  wrong = "    raise RuntimeError('boom')"
  number = path.read_text().splitlines().index(wrong) + 1
  workdir = tmp_path / 'run'
  kept = workdir / 'error.txt'

  def train():
    config = config_file.load(str(path), ['--config.data.backend=numpy'])
    return train_and_evaluate(config, workdir)

  with raises(
    RunError,
    f'{path}:{number}: RuntimeError: boom; the whole traceback is in {kept}; '
    'last good checkpoint: none',
  ):
    train()
  text = kept.read_text()
  assert text.startswith('Traceback') and wrong in text
  path.write_text(path.read_text().replace(wrong, '    pass'))
  assert train()['steps'] == 9
  assert not kept.exists()


def test_a_field_that_a_custom_data_set_lacks_is_named(tmp_path):
  path = file_of(tmp_path, DATA, MODEL, TASK)
  path.write_text(
    path.read_text()
    + textwrap.dedent("""
    def get_config():
      config = base.get_config('bsp')
      config.steps = 2
      config.data.update(name='mine', sise=3)
      return config
  """)
  )
  with pytest.raises(ConfigError, match='mine has no sise; it has size'):
    config_file.load(str(path), ())


def test_a_name_belongs_to_one_file_that_may_be_loaded_again(tmp_path):
  method = '@ss.register_method\ndef mine(context):\n  return {}'
  (tmp_path / 'other').mkdir()
  for text in ('first', 'second'):
    path = file_of(tmp_path, DATA, MODEL, TASK, method.format(repr(text)))
    config_file.load(str(path), ())
    assert methods.METHODS['mine'](None) == text
  other = file_of(tmp_path / 'other', method.format(0))
  with pytest.raises(ConfigError, match='has registered this name'):
    config_file.load(str(other), ())


def arrays(count=8, **changes):
  x = np.arange(2.0 * count).reshape(count, 2)
  return {'image': x, 'label': np.arange(count) % 2} | changes


def own(**changes):
  splits = {'train': arrays(), 'validation': arrays(), 'test': arrays()}
  options = {'task': 'classification', 'num_classes': 2}
  return from_arrays(**splits | options | changes)


@pytest.mark.parametrize(
  'changes, line',
  [
    ({'train': arrays(label=np.arange(3))}, 'must be arrays of one length'),
    ({'test': {'image': np.ones((3, 2))}}, 'test has image (2,) float32, but'),
    ({'train': arrays(label=np.array(['a'] * 8))}, 'label has dtype <U1'),
    ({'train': arrays(label=np.arange(8) + 2**40)}, 'numbers beyond 32 bits'),
    ({'train': arrays(mask=np.ones(8))}, 'has an array mask'),
    ({'num_classes': 1}, 'got int32 (8,) from 0 to 1'),
    ({'train': arrays(label=np.ones(8))}, 'got float32 (8,) from 1.0 to 1.0'),
  ],
)
def test_arrays_that_do_not_match_are_refused(changes, line):
  with raises(ValueError, f'...{line}...'):
    own(**changes)


def test_a_split_that_is_missing_is_named():
  pytest.importorskip('datasets')
  with pytest.raises(ValueError, match='no validation, test; it has train'):
    from_huggingface({'train': None}, task='regression', num_classes=1)


def test_values_that_hugging_face_data_lack_are_named():
  datasets = pytest.importorskip('datasets')
  whole = {'features': [[0.5], [1.5]], 'target': [1.0, 2.0]}
  lacking = whole | {'target': [1.0, None]}
  splits = {
    name: datasets.Dataset.from_dict(lacking if name == 'test' else whole)
    for name in ('train', 'validation', 'test')
  }
  with pytest.raises(ValueError, match=r'^test: target lacks 1 of its values$'):
    from_huggingface(splits, task='regression', num_classes=1)
  splits['test'] = splits['train']
  found = from_huggingface(splits, task='regression', num_classes=1)
  assert found.splits['test']['target'].tolist() == [1, 2]


def test_a_model_that_fits_no_memory_is_refused_before_it_is_made(tmp_path):
  @models.register_model
  class Huge(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, x, train):
      del train
      x = nn.Dense(10**10)(x.reshape(len(x), -1))
      return nn.Dense(self.num_outputs)(x)

  config = short_runs.config(model__name='Huge')
  config.model.num_filters = None
  with pytest.raises(ConfigError, match=r'take 3e.03 GB, but a device has'):
    train_and_evaluate(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('backend', ['numpy', 'tf'])
def test_functions_that_work_in_place_change_nothing_stored(backend, tmp_path):
  stored = np.arange(1, 17, dtype=np.float32).reshape(8, 2)
  stored.tofile(tmp_path / 'images')
  image = np.memmap(tmp_path / 'images', np.float32, 'r+', shape=(8, 2))

  def scaled(batch):
    batch['image'] /= 255
    return batch

  def doubled(batch, key):
    batch['image'] *= 2
    return batch

  @ss.register_dataset
  def mapped():
    given = arrays(image=image)
    splits = {'train': given, 'validation': given, 'test': given}
    return own(**splits, transform=scaled, augment=doubled)

  config = config_file.load('digits', ())
  config.data.update(name='mapped', backend=backend)
  data = open_data(
    bind_data(config.data.to_dict()), workers=2, batch_size=2, seed=0
  )
  for _ in range(2):
    (scored,) = data.evaluation('validation', 4, [0, 1], 2)
    np.testing.assert_allclose(scored['image'].reshape(8, 2), stored / 255)
    read = np.concatenate([b['image'] for b in data.batches([0, 1], 0, 4)])
    assert set((read * 127.5).round().ravel()) <= set(stored.ravel())
  image.flush()
  found = np.fromfile(tmp_path / 'images', np.float32)
  np.testing.assert_array_equal(found, stored.ravel())


def test_an_augmentation_is_the_same_whenever_a_step_is_repeated():
  def shifted(batch, key):
    noise = (key % 1000)[:, None].astype(np.float32)
    return batch | {'image': batch['image'] * 0 + noise}

  @ss.register_dataset
  def shifting():
    return own(augment=shifted)

  config = config_file.load('digits', ())
  config.data.name = 'shifting'
  data = open_data(
    bind_data(config.data.to_dict()), workers=2, batch_size=2, seed=0
  )
  first = [batch['image'] for batch in data.batches([0, 1], 0, 9)]
  again = [batch['image'] for batch in data.batches([0, 1], 5, 9)]
  np.testing.assert_array_equal(first[5:], again)
  assert len(np.unique(first)) > 20  # From 8 examples: each epoch differs.
  (scored,) = data.evaluation('validation', 4, [0, 1], 2)
  np.testing.assert_array_equal(scored['image'].reshape(8, 2)[:, 0] % 2, 0)
