"""Without TensorFlow and TFDS, NumPy reads the data sets that it can."""

import json
import os
import sys

import pytest

from selsync_jax.configs import digits
from selsync_jax.training.train import train_and_evaluate
from tests.support import live_runs
from tests.support.session import ROOT

STEPS = 12

BLOCKED = """
import runpy, sys
for name in ('tensorflow', 'tensorflow_datasets'):
  sys.modules[name] = None  # Importing it raises ImportError.
sys.argv = ['train.py', *sys.argv[1:]]
runpy.run_path('train.py', run_name='__main__')
"""


def rows(workdir):
  """The rows of a run without its times."""
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [
    {
      name: value
      for name, value in json.loads(line).items()
      if name not in ('seconds', 'samples_per_second')
    }
    for line in lines
  ]


@pytest.mark.slow
def test_digits_train_without_tensorflow_to_the_same_metrics(
  tmp_path, data_dir
):
  done = live_runs.run(
    *(sys.executable, '-c', BLOCKED),
    *(f'--config.steps={STEPS}', f'--workdir={tmp_path / "numpy"}'),
    '--noreport',
    env=os.environ | {'TFDS_DATA_DIR': str(tmp_path / 'nothing')},
  )
  assert done.returncode == 0, done.stderr
  assert not (tmp_path / 'nothing').exists()

  config = digits.get_config()
  config.update(steps=STEPS)
  config.data.update(dir=data_dir, backend='tf')
  train_and_evaluate(config, tmp_path / 'tf')
  expected = rows(tmp_path / 'tf')
  assert len(expected) == STEPS and 'validation_loss' in expected[-1]
  assert rows(tmp_path / 'numpy') == expected


REFUSALS = {
  '--config.data.backend=tf': "config.data.backend='tf': import of tensorflow "
  "halted; None in sys.modules; install it, or use 'numpy'",
  '--config.data.name=cifar10': 'config.data: '
  "'cifar10' needs TensorFlow; without it, choose from digits, fashion_mnist, "
  'hyperplane, python_text, stdlib_text',
}


@pytest.mark.parametrize('flag', REFUSALS)
def test_data_that_needs_tensorflow_is_refused_in_one_line(flag, tmp_path):
  done = live_runs.run(
    sys.executable, '-c', BLOCKED, flag, f'--workdir={tmp_path / "run"}'
  )
  assert done.returncode == 2
  assert done.stderr == f'train.py: {REFUSALS[flag]}\n'


def test_only_tfdata_imports_tensorflow_before_it_is_needed():
  package = ROOT / 'selsync_jax'
  importing = {
    path.relative_to(package).parts[:2]
    for path in package.rglob('*.py')
    if '\nimport tensorflow' in path.read_text()
  }
  assert importing == {('data', 'tfdata')}
