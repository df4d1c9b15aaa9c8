"""Effects of an edit of a user's file on the identity of runs."""

import pytest

from selsync_jax import own_code
from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError
from selsync_jax.runs import history
from selsync_jax.training.evaluation import evaluate
from selsync_jax.training.train import train_and_evaluate
from tests.support.lines import raises

FILES = {
  'mine.py': '''
import flax.linen as nn
import numpy as np
import selsync_jax as ss
from selsync_jax import data
from selsync_jax.configs import base
from selsync_jax.sync import averagers, strategy, triggers
import helper
from helper import loss_of as losses

SHIFT = {}
SHIFT.update(x=1.0)

def points(count):
  return {'x': np.ones((count, 2)), 'y': np.arange(count) % 2}

def shifted(batch):
  """Moves the points."""
  return batch | {'x': batch['x'] + SHIFT['x']}

@ss.register_dataset
def dots():
  return data.from_arrays(
    train=points(16), validation=points(4), test=points(4), task='distance',
    num_classes=2, transform=shifted,
  )

@ss.register_task('x')
def distance(scores, batch):
  return {'loss': losses(scores, batch['y'])}

@ss.register_task('x')
def unused(scores, batch):
  return {'loss': scores[:, 0] * 3}

@ss.register_model
class Mine(nn.Module):
  num_outputs: int
  @nn.compact
  def __call__(self, x, *, train):
    return helper.Scores(self.num_outputs)(x)

def periodic(period):
  def mine(context):
    return strategy.Strategy(triggers.every(period), averagers.mean())
  return mine

ss.register_method(periodic(2))

@ss.register_method
def other(context):
  return strategy.Strategy(triggers.every(3), averagers.mean())

def get_config(method='mine'):
  config = base.get_config(method)
  config.update(steps=2, workers=2, mapper='vmap', batch_size=4)
  config.data.update(name='dots', backend='numpy')
  config.model.name = 'Mine'
  return config

period = 5
''',
  'helper.py': """
import flax.linen as nn
import optax

FEATURES = 2

def loss_of(scores, label):
  return optax.softmax_cross_entropy_with_integer_labels(scores, label)

class Scores(nn.Module):
  num_outputs: int
  @nn.compact
  def __call__(self, x):
    return nn.Dense(self.num_outputs)(nn.Dense(FEATURES)(x))
""",
}
IMPORTED = ['FEATURES', 'Scores', 'loss_of', 'losses', 'nn', 'optax']
# Each edit, its replacement, and the resulting differences, by kind.
EDITS = {
  'nothing': ('', '', {}),
  'comment': ('def periodic', '# Why.\ndef periodic', {}),
  'docstring': ('Moves the points.', 'Another word.', {}),
  'layout': ('triggers.every(period)', 'triggers.every(\n period,)', {}),
  'default': ('steps=2, ', 'steps=3, ', {}),
  'another method': ('every(3)', 'every(4)', {}),
  'namesake of a local variable': ('period = 5', 'period = 6', {}),
  'unused import': ('averagers, ', 'averagers, wires, ', {}),
  'number in a closure': (
    'periodic(2)',
    'periodic(4)',
    {
      'method': [
        'ss.register_method(periodic(2))',
        'ss.register_method(periodic(4))',
      ]
    },
  ),
  'function of the host': ("['x'] +", "['x'] -", {'data': ['shifted']}),
  'table': ('x=1.0', 'x=2.0', {'data': ['SHIFT']}),
  'data': ('points(16)', 'points(24)', {'data': ['dots']}),
  'loss': (
    '(scores, label)\n\n',
    '(scores, 0)\n\n',
    {'task.distance': ['loss_of']},
  ),
  'another task': ('* 3', '* 4', {'task.unused': ['unused']}),
  'import': ('loss_of as', 'Scores as', {'task.distance': IMPORTED}),
  'model': ('FEATURES = 2', 'FEATURES = 3', {'model': ['FEATURES']}),
}


def write(folder, old='', new=''):
  for name, text in FILES.items():
    (folder / name).write_text(text.replace(old, new) if old else text)


def load(folder, *fields):
  return config_file.settings(str(folder / 'mine.py'), fields)


@pytest.mark.parametrize('edit', EDITS)
def test_an_edit_is_noticed_where_it_counts(edit, tmp_path):
  old, new, expected = EDITS[edit]
  write(tmp_path)
  before = load(tmp_path).code
  write(tmp_path, old, new)
  after = load(tmp_path).code
  assert after.keys() == before.keys()
  changes = {
    kind.removeprefix('code.'): own_code.names_of_changes(*both)
    for kind in before
    if (both := (before[kind], after[kind])) and both[0] != both[1]
  }
  assert changes == expected


def test_a_run_of_edited_code_is_refused_and_says_what_was_edited(tmp_path):
  write(tmp_path)
  run = tmp_path / 'run'
  more = '--config.steps=3'
  train_and_evaluate(load(tmp_path), run)
  write(tmp_path, 'periodic(2)', 'periodic(4)')
  for fields in ([], [more]):  # A finished run, or a longer one.
    line = '...the code of its method...--accept_changes, or --restart'
    with raises(ConfigError, line):
      train_and_evaluate(load(tmp_path, *fields), run)
  assert evaluate(run, 'last', 'test')[0] == 2  # Any method may be evaluated.
  write(tmp_path, 'x=1.0', 'x=2.0')
  with pytest.raises(ConfigError, match=r'of its data has .*SHIFT; undo'):
    load(tmp_path) and evaluate(run, 'last', 'test')
  train_and_evaluate(load(tmp_path, more), run, accept_changes=True)
  (_, last) = history.read(run).sessions
  assert last['changes'] == ['the code of its data has changed: SHIFT']


def test_an_edit_that_mends_an_error_is_accepted(tmp_path):
  write(tmp_path)
  run = tmp_path / 'run'
  train_and_evaluate(load(tmp_path), run)
  write(tmp_path, 'periodic(2)', 'periodic(4)')
  more = load(tmp_path, '--config.steps=3')
  (run / 'error.txt').write_text('Traceback')  # From the last session.
  assert train_and_evaluate(more, run)['steps'] == 3


def test_an_edit_of_a_task_of_other_data_changes_no_run(tmp_path):
  write(tmp_path)
  run = tmp_path / 'run'
  train_and_evaluate(load(tmp_path), run)
  trial = history.Trial('mine', 0.1, 0, run, [], load(tmp_path).config)
  write(tmp_path, '* 3', '* 4')
  edited = load(tmp_path)
  assert trial._replace(code=edited.code).is_done
  assert train_and_evaluate(edited, run)['steps'] == 2
  evaluate(run, 'last', 'test')
  write(tmp_path, '(scores, label)\n\n', '(scores, 0)\n\n')
  (line,) = trial._replace(code=load(tmp_path).code).changes
  assert line == 'the code of its task has changed: loss_of'
