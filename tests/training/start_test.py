"""Work of a resumed or resized run before its first step."""

import shutil

import pytest

from selsync_jax import models
from selsync_jax.commands import train
from selsync_jax.runs import checkpoints
from selsync_jax.training import evaluation, problem, settings, setup, start
from selsync_jax.training.settings import check
from selsync_jax.training.train import train_and_evaluate
from tests.support import short_runs
from tests.support.marks import slow
from tests.support.perceptron import Perceptron
from tests.support.session import make_once


def config(steps, workers=2):
  own = {'checkpoint__every': 4, 'model__num_filters': 4}
  return short_runs.config('diloco', workers=workers, steps=steps, **own)


@pytest.fixture
def workdir(tmp_path):
  """A copy of a run of four steps."""
  made = make_once(
    'start', lambda folder: train_and_evaluate(config(steps=4), folder)
  )
  return shutil.copytree(made, tmp_path / 'run')


@pytest.fixture
def opened(monkeypatch):
  """The number of workers of every data set that is opened."""
  numbers = []

  def count(fields, *, workers, **more):
    numbers.append(workers)
    return open_data(fields, workers=workers, **more)

  open_data = problem.open_data
  monkeypatch.setattr(problem, 'open_data', count)
  return numbers


def test_a_record_of_the_same_scale_changes_no_setting():
  """So a setup made without the record can be used with it."""
  made = check(config(steps=4))
  record = {
    'workers': made.config.workers,
    'batch_size': made.config.batch_size,
    'learning_rate': made.learning_rate,
  }
  assert start.adapt(made, record) == made
  less = start.adapt(made, record | {'batch_size': 8})
  assert less != made
  assert less.config.batch_size == 8


@pytest.mark.slow
def test_a_resumed_run_makes_no_state_beside_the_one_it_restores(
  workdir, monkeypatch
):
  def refuse(self):
    raise AssertionError('a second copy of the state')

  monkeypatch.setattr(problem.Problem, 'init', refuse)
  summary = train_and_evaluate(config(steps=6), workdir)
  assert summary['steps'] == 6


@pytest.mark.slow
def test_a_run_checks_its_config_and_makes_its_model_once(
  tmp_path, monkeypatch
):
  made, checked = [], []

  def counted(num_outputs, *, num_filters: int, dtype: str):
    made.append(num_outputs)
    return Perceptron(num_outputs, num_filters, dtype)

  def bind(fields):
    checked.append(fields['name'])
    return bind_data(fields)

  bind_data = settings.bind_data
  monkeypatch.setattr(settings, 'bind_data', bind)
  monkeypatch.setitem(models.MODELS, 'counted', counted)
  fields = 'mapper=vmap', 'model.name=counted', 'data.backend=numpy'
  for i, workers in enumerate([2, 2, 3], 1):  # New, resumed, and resized.
    length = f'steps={2 * i}', f'workers={workers}'
    options = train.parse([f'--config.{field}' for field in (*fields, *length)])
    train_and_evaluate(options.settings, tmp_path / 'run')
    assert (len(made), len(checked)) == (i, i)


@pytest.mark.slow
def test_a_resized_run_reads_its_data_once(workdir, opened):
  train_and_evaluate(config(steps=6, workers=4), workdir)
  assert opened == [4]


@pytest.mark.parametrize('workers', [1, slow(4)])
def test_a_schedule_in_steps_keeps_its_place_and_its_epochs(workers):
  def begun(config, record):
    config.checkpoint.resize_batch = 'worker'
    whole = setup.create_setup(start.adapt(check(config), record))
    made = whole.problem
    position = start.totals(made, whole.mapper, record).position
    rate = float(made.learning_rate(position)) / made.peak_rate
    return made, rate, made.steps / made.steps_per_epoch

  record = {'workers': 2, 'batch_size': 32, 'learning_rate': 0.1}
  record['totals'], record['epoch'] = {'steps': 40}, 40 / 20
  alone, *expected = begun(config(steps=80), record)
  assert alone.steps_per_epoch == 20
  resized, *found = begun(config(steps=80, workers=workers), record)
  assert resized.steps == 80 / workers * 2
  assert found == pytest.approx(expected)


def test_the_workers_of_a_resized_run_have_skipped_nothing():
  made = setup.create_setup(check(config(steps=8, workers=4)))
  parts = made.problem, made.mapper
  totals = {'steps': 4, 'skips': [3, 0]}
  record = {'workers': 2, 'epoch': 0.2, 'totals': totals}
  assert start.totals(*parts, record).skips == []
  assert start.totals(*parts, record | {'workers': 4}).skips == [3, 0]


def test_a_run_may_resume_with_more_workers_than_its_config_has_batches_for(
  workdir,
):
  resized = config(steps=6, workers=41)  # 41 batches of 32 are too many.
  with pytest.raises(Exception, match='a batch of 32 is larger'):
    problem.create_problem(check(resized))
  summary = train_and_evaluate(resized, workdir)
  assert summary['workers'] == 41
  _, scores = evaluation.evaluate(workdir, 'last', 'test')
  assert scores['test_loss'] == pytest.approx(summary['test_loss'], rel=1e-5)


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_last(
  workdir, opened, capsys
):
  train_and_evaluate(config(steps=8, workers=4), workdir)
  damaged = workdir / checkpoints.FOLDER / '8' / 'record' / 'metadata'
  assert opened == [4]
  damaged.write_text('{')
  train_and_evaluate(config(steps=8, workers=4), workdir)
  assert opened == [4, 4]  # Once in each run.
  output = capsys.readouterr()
  assert 'checkpoint 8 is damaged' in output.err
  assert 'resuming from step 4 with 4 workers instead of 2' in output.out
