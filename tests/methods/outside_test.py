"""A custom method in a user's own file, from start to end."""

import pathlib
import textwrap

import pytest

from selsync_jax import methods
from selsync_jax.__main__ import run_command
from selsync_jax.commands import compare, train
from selsync_jax.report import run_page
from selsync_jax.training.train import train_and_evaluate
from tests.support.live_runs import rows

CONFIG = """
  import selsync_jax as ss
  from selsync_jax.configs import digits


  @ss.register_method
  def rarely(context, *, period: int = 3):
    "Averages every so often, and sends a vote that it does not need."
    return ss.Strategy(
      ss.any_of(ss.every(period), ss.selsync(float('inf'))), ss.mean()
    )


  def get_config(method='rarely'):
    config = digits.get_config(method)
    config.update(workers=2, mapper='vmap', steps=9)
    config.checkpoint.every, config.model.name = 4, 'perceptron'
    return config
"""


@pytest.fixture
def config_file(tmp_path, monkeypatch, perceptron):
  """The file, in a folder outside the search path; forgotten afterwards."""
  del perceptron
  path = tmp_path / 'mine.py'
  path.write_text(textwrap.dedent(CONFIG))
  monkeypatch.chdir(tmp_path)
  before = dict(methods.METHODS)
  yield path
  methods.METHODS.clear()
  methods.METHODS.update(before)


@pytest.mark.slow
def test_it_trains_resumes_is_compared_and_reported(
  config_file, data_dir, capsys
):
  flags = [f'--config={config_file}', f'--config.data.dir={data_dir}']

  def run(*more):
    options = train.parse([*flags, '--config.sync.period=2', *more])
    train_and_evaluate(options.settings, options.workdir)
    return options.workdir

  run('--config.steps=5')
  workdir = run()
  assert workdir == pathlib.Path('runs/mine-rarely')
  assert 'resuming from step 5' in capsys.readouterr().out
  assert [row['step'] for row in rows(workdir)] == list(range(1, 10))
  synced = [row['step'] for row in rows(workdir) if row['synced']]
  assert synced == [1, 2, 4, 6, 8]  # The first change is infinite.
  assert 'rarely' in run_page.write([workdir], workdir).read_text()

  out = pathlib.Path('compared')
  compare.main(
    [*flags, '--methods=rarely+sync.period=4,bsp', '--seeds=1', f'--out={out}'],
    run=lambda trial: train_and_evaluate(trial.config, trial.workdir),
  )
  assert '| rarely, period 4 |' in (out / 'comparison.md').read_text()


@pytest.mark.slow
def test_it_is_planned_beside_the_others(config_file, data_dir, capsys):
  run_command(
    [
      'plan',
      f'--config={config_file}:rarely',
      f'--config.data.dir={data_dir}',
      '--lssr=0.9',
      '--steps=3',
    ]
  )
  assert '\nrarely ' in capsys.readouterr().out


def test_its_fields_are_checked_like_fields_of_any_method(config_file, refused):
  flags = f'--config={config_file}', '--config.sync.perod=2'
  assert 'perod' in refused('train', *flags)
