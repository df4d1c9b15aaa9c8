"""Weights that a run starts from: their source, and matching names."""

import re
import shutil

import jax
import ml_dtypes
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from selsync_jax.array_names import by_name
from selsync_jax.config import ConfigError, RunError
from selsync_jax.runs import array_files, files, initial, weights
from selsync_jax.runs import source as sources
from selsync_jax.simulate.numerics import Numerics
from selsync_jax.training import start
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.participants import Participants
from selsync_jax.training.problem import create_problem
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from selsync_jax.training.train import train_and_evaluate
from tests.support import short_runs
from tests.support.lines import raises
from tests.support.session import make_once


def config(source=None, mapper='vmap', workers=2, fsdp=1, **fields):
  own = {
    'steps': 4,
    'init_from': source,
    'mapper': mapper,
    'workers': workers,
    'mesh__fsdp': fsdp,
    'model__name': 'normalized',
    'model__num_filters': 64,
    'schedule__warmup_epochs': 0.0,
    'checkpoint__every': 2,
  }
  # Its averager keeps a copy of the start.
  return short_runs.config('diloco', **own | fields)


@pytest.fixture(scope='module')
def source():
  """A run of two workers of two devices each, and files with its weights."""

  def make(folder):
    train_and_evaluate(config(mapper='mesh', fsdp=2), folder / 'run')
    for name in ('w.safetensors', 'w.npz', 'orbax'):
      weights.export(folder / 'run', folder / name)

  return make_once('source', make)


@pytest.mark.parametrize(
  'name, mapper, workers, fsdp',
  [
    ('run', 'vmap', 3, 1),
    pytest.param('run', 'mesh', 2, 4, marks=pytest.mark.slow),
    ('w.safetensors', 'mesh', 2, 4),
    pytest.param('w.npz', 'vmap', 3, 1, marks=pytest.mark.slow),
    ('orbax', 'pmap', 2, 1),
  ],
)
def test_a_run_starts_with_the_loss_of_its_source(
  source, name, mapper, workers, fsdp
):
  made = config(str(source / name), mapper, workers, fsdp, seed=5)
  setup = create_setup(check(made))
  state = start.init(setup)
  evaluator = Evaluator(setup.problem, Participants(setup.mapper))
  scores = evaluator.scores(evaluator.consensus(state.shared), 'validation')
  ended = weights.read(source / 'run')
  loss = ended.scores['validation_loss']
  assert scores['validation_loss'] == pytest.approx(loss, abs=1e-6)
  kernel = ended.variables['params']['Dense_0']['kernel']
  for row in np.asarray(state.params['Dense_0']['kernel']):
    np.testing.assert_array_equal(row, kernel)
  (kept,) = {
    name: leaf
    for name, leaf in by_name(state.averager_state).items()
    if name.endswith('Dense_0/kernel') and 'trace' not in name
  }.values()
  np.testing.assert_array_equal(np.asarray(kept)[0], kernel)


def test_a_checkpoint_of_orbax_v1_is_read_if_it_holds_one_tree(tmp_path):
  tree = {'params': {'w': np.arange(3, dtype=np.float32)}}
  ocp.v1.save(tmp_path / 'one', tree)
  given = initial.read(sources.bind(str(tmp_path / 'one'), None), tree)
  np.testing.assert_array_equal(given.arrays['params/w'], tree['params']['w'])
  ocp.v1.save_checkpointables(tmp_path / 'two', dict(a=tree, b=tree))
  with pytest.raises(ConfigError, match='with one tree, not a, b'):
    initial.check(sources.bind(str(tmp_path / 'two'), None))


def test_a_checkpoint_of_a_run_is_refused_with_what_to_give(source):
  checkpoint = source / 'run' / 'checkpoints' / '4'
  with pytest.raises(
    ConfigError, match=r'give the folder of the run, or .* --step=4`'
  ):
    initial.check(sources.bind(str(checkpoint), None))


def test_an_asynchronous_run_starts_from_given_weights_too(source):
  made = config(str(source / 'w.npz'))
  problem = create_problem(check(made))
  model = Numerics(problem, made.optimizer.to_dict()).initial()
  found = array_files.flat(weights.joined(model))
  expected = array_files.flat(weights.read(source / 'run').variables)
  jax.tree.map(np.testing.assert_array_equal, found, expected)
  problem.forget_given()
  assert 'given' not in vars(problem)
  jax.tree.map(np.testing.assert_array_equal, problem.given.arrays, expected)


@pytest.mark.slow
def test_a_resumed_run_needs_no_source_and_a_changed_one_is_noticed(
  source, tmp_path, capsys
):
  file, workdir = tmp_path / 'w.npz', tmp_path / 'run'
  shutil.copy(source / 'w.npz', file)
  train_and_evaluate(config(str(file)), workdir)
  line = f'weights of {file}: 8 of 8 arrays\n'
  assert line in capsys.readouterr().out
  file.unlink()
  train_and_evaluate(config(str(file), steps=6), workdir)
  assert 'weights of' not in capsys.readouterr().out
  with pytest.raises(ConfigError, match=r'init_from was .*, now None'):
    train_and_evaluate(config(steps=8), workdir)
  shutil.rmtree(workdir / 'checkpoints')  # Like a kill before the first one.
  arrays = dict(np.load(source / 'w.npz'))
  np.savez(file, **arrays | {'params/Dense_0/bias': np.ones(64, np.float32)})
  with pytest.raises(ConfigError, match=r'init_from\.crc32 was \d+, now \d+'):
    train_and_evaluate(config(str(file), steps=8), workdir)


MODEL = {
  'params': {
    'body': {'kernel': np.zeros((2, 3), np.float32)},
    'head': {'kernel': np.zeros((3, 5), np.float32)},
  },
  'batch_stats': {'body': {'count': np.zeros((), np.int32)}},
}


def given(path, rename=()):
  return initial.read(sources.bind(str(path), rename), MODEL)


def test_names_are_translated_and_the_rest_is_reported(tmp_path):
  """The file looks like another program's, in bfloat16 with an optimizer."""
  kernel = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
  params = {
    'encoder': {'weight': kernel},
    'head': {'weight': np.ones((3, 1000), np.float32)},
  }
  adam = optax.adam(0.1).init(params)
  with ocp.StandardCheckpointer() as checkpointer:
    tree = {'model': params, 'adam': adam, 'step': 3}
    checkpointer.save(tmp_path / 'theirs', tree)
  found = given(
    tmp_path / 'theirs',
    [
      ('^adam/', None),
      ('^model/', 'params/'),
      ('encoder/', 'body/'),
      ('weight$', 'kernel'),
      ('^params/head/', None),
    ],
  )
  (name,) = found.arrays
  assert name == 'params/body/kernel'
  assert found.arrays[name].dtype == np.float32
  np.testing.assert_array_equal(found.arrays[name], kernel.astype(np.float32))
  assert found.line == (
    f'weights of {tmp_path}/theirs: 1 of 3 arrays; not there, so initialized: '
    'batch_stats/body/count, params/head/kernel; not used: step'
  )


@pytest.mark.parametrize(
  'arrays, rename, line',
  [
    (
      {'params/head/kernel': np.ones((3, 4), np.float32)},
      (),
      '{path}: params/head/kernel is float32[3, 4] there and float32[3, 5] '
      'here; to initialize it, end config.init_rename with '
      "('^params/head/kernel$', None)",
    ),
    (
      {'batch_stats/body/count': np.ones((), np.float32)},
      (),
      '{path}: batch_stats/body/count is float32[] there and int32[] here; ',
    ),
    (
      {'a': np.ones(1), 'b': np.ones(1)},
      (),
      '{path}: none of its arrays is in the model, which has '
      'batch_stats/body/count, params/body/kernel, params/head/kernel; it has '
      'a, b; config.init_rename translates',
    ),
    (
      {'a': np.ones(1), 'b': np.ones(1)},
      (('a', 'b'),),
      'config.init_rename: a and b both become b',
    ),
    (
      {'a': np.ones(1)},
      (('a', 'b'), ('c', 'd')),
      "config.init_rename[1], 'c', matches no name in ",
    ),
  ],
)
def test_weights_that_do_not_fit_are_refused(arrays, rename, line, tmp_path):
  path = tmp_path / 'w.npz'
  np.savez(path, **arrays)
  line = line.format(path=f'config.init_from={str(path)!r}')
  with raises(ConfigError, f'{line}...'):
    given(path, rename)


@pytest.mark.parametrize(
  'fields, line',
  [
    ({'init_rename': (('a', 'b'),)}, "init_rename=(('a', 'b'),): needs init_"),
    ({'init_rename': ('a', 'b')}, "init_rename[0]='a': must be a pair of a "),
    ({'init_rename': (('(', 'b'),)}, "init_rename[0]=('(', 'b'): missing ), "),
    ({'init_rename': (('a', r'\1'),)}, r"init_rename[0]=('a', '\\1'): invalid"),
    ({}, "init_from='{path}': must be the folder of a run, a file .safeten"),
  ],
)
def test_a_mistake_is_found_before_the_data_are_read(fields, line, tmp_path):
  (tmp_path / 'config.json').write_text('{}')  # Hugging Face's hub has one.
  path = None if 'needs' in line else str(tmp_path)
  with raises(ConfigError, f'config.{line}...'.format(path=tmp_path)):
    create_problem(check(config(path, **fields)))


@pytest.mark.parametrize('name', ['w.safetensors', 'w.npz'])
def test_a_damaged_file_is_named(name, source, tmp_path):
  content = (source / name).read_bytes()
  middle = len(content) // 2
  flipped = bytes([content[middle] ^ 255])
  path = tmp_path / name
  path.write_bytes(content[:middle] + flipped + content[middle + 1 :])
  with pytest.raises(files.DamagedFile, match=re.escape(f'{path} is damaged')):
    given(path)
  path.unlink()
  path.mkdir()
  with pytest.raises(RunError, match='cannot be read: Is a directory'):
    given(path)
