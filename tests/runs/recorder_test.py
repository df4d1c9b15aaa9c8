"""Records of a custom training loop."""

import contextlib
import sys

import jax
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.config import ConfigError
from selsync_jax.report import run_page
from selsync_jax.runs import history
from selsync_jax.training import start
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.participants import Participants
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup
from tests.support import live_runs, recorded, short_runs
from tests.support.shown import line

# Columns that a custom loop lacks, or that differ between any two runs.
TIMES = {'epoch', 'seconds', 'samples_per_second'}


def untimed(row):
  return {name: row[name] for name in row if name not in TIMES}


def train(config, workdir):
  """The trainer's loop, written by hand; returns the summary."""
  setup = create_setup(check(config))
  problem, mapper, shapes = setup.problem, setup.mapper, setup.shapes
  workers = range(mapper.workers)
  evaluator = Evaluator(problem, Participants(mapper))
  with ss.Recorder(
    workdir,
    workers=mapper.workers,
    strategy=setup.strategy,
    params=shapes.params,
    model_state=shapes.model_state,
    opt_state=shapes.opt_state,
    config={'seed': 0, 'data': {'name': 'digits'}},
  ) as recorder:
    state, step = start.init(setup), setup.train_step()
    batches = problem.data.batches(workers, 0, problem.steps)
    for i, batch in enumerate(batches):
      state, metrics = step(state, batch)
      del metrics['unequal']
      recorder.step(metrics | {'lr': np.full(len(workers), problem.rates[i])})
      if (i + 1) % setup.problem.evaluate_every == 0 or i + 1 == problem.steps:
        mean = evaluator.consensus(state.shared)
        recorder.evaluate(scores, evaluator, mean, 'validation')
    return recorder.finish(scores(evaluator, mean, 'test'))


def scores(evaluator, mean, split):
  found = evaluator.scores(mean, split)
  return {k.removeprefix(f'{split}_'): v for k, v in found.items()}


@pytest.fixture(scope='module')
def workdirs(tmp_path_factory):
  """The same training by the trainer and by hand."""
  folder = tmp_path_factory.mktemp('both')
  short_runs.run(folder / 'trainer')
  train(short_runs.config(), folder / 'mine')
  return folder / 'trainer', folder / 'mine'


def test_a_recorder_writes_the_rows_and_the_summary_of_the_trainer(workdirs):
  trainers, mine = (short_runs.rows(workdir) for workdir in workdirs)
  assert len(mine) == short_runs.STEPS
  assert list(map(untimed, mine)) == list(map(untimed, trainers))
  trainer, own = (history.read(workdir).summary for workdir in workdirs)
  own['method'] = trainer['method']
  assert untimed(own) == untimed(trainer)


@pytest.mark.slow
def test_a_report_shows_a_loop_alone_and_beside_a_trainers_run(
  workdirs, tmp_path
):
  trainer, mine = workdirs
  expected = history.read(mine).columns['loss']
  text = run_page.write([mine], tmp_path).read_text()
  _, y = line(text, 'loss', 1, 'training batches')
  np.testing.assert_allclose(y, expected, rtol=1e-4)
  assert 'mine: selsync(1.0), mean() on digits, 4 workers, seed 0' in text
  both = run_page.write([trainer, mine], tmp_path).read_text()
  points = [line(both, 'loss', 1, name)[1] for name in ('trainer', 'mine')]
  np.testing.assert_array_equal(*points)


STRATEGY = ss.Strategy(ss.every(4), ss.mean())
PARAMS = {'w': np.zeros(5, np.float32)}
OPTIONS = dict(workers=2, strategy=STRATEGY, params=PARAMS)


def record(recorder, steps):
  """Records steps with made-up metrics, and a score after every third."""
  for i in steps:
    synced, loss = np.full(2, i % 4 == 0), np.array([1 / i, np.nan])
    recorder.step({'loss': loss, 'count': np.full(2, 8), 'synced': synced})
    if i % 3 == 0:
      recorder.evaluate(dict, {'accuracy': i / 100})


def test_a_resumed_loop_has_the_rows_of_an_uninterrupted_loop(
  tmp_path,
):
  with ss.Recorder(tmp_path / 'whole', **OPTIONS) as recorder:
    record(recorder, range(1, 21))
    whole = recorder.finish()
  assert whole['bytes_per_worker'] == 5 * 5 * 4
  assert whole['validation_accuracy'] == 0.18
  workdir = tmp_path / 'parts'
  with (
    contextlib.suppress(KeyboardInterrupt),
    ss.Recorder(workdir, **OPTIONS) as own,
  ):
    record(own, range(1, 11))
    own.flush()  # Before a checkpoint.
    record(own, range(11, 18))
    raise KeyboardInterrupt
  with (workdir / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 18, "lo')
  with ss.Recorder(workdir, step=10, **OPTIONS) as own:
    record(own, range(11, 21))
    parts = own.finish()
  assert untimed(parts) == untimed(whole)
  rows = [history.read(tmp_path / name).rows for name in ('whole', 'parts')]
  assert list(map(untimed, rows[0])) == list(map(untimed, rows[1]))
  assert [each['step'] for each in history.read(workdir).sessions] == [0, 10]


def test_a_loop_that_ends_early_keeps_its_rows_and_is_shown(tmp_path):
  with (
    contextlib.suppress(SystemExit),
    ss.Recorder(tmp_path, **OPTIONS) as recorder,
  ):
    record(recorder, range(1, 6))
    raise SystemExit(75)
  assert [row['step'] for row in history.read(tmp_path).rows] == [1, 2, 3, 4, 5]
  text = run_page.write([tmp_path], tmp_path).read_text()
  assert 'Not finished: 5 steps' in text


GOOD = dict.fromkeys(('loss', 'count', 'synced'), np.zeros(2))


@pytest.mark.parametrize(
  'metrics, message',
  [
    ({'loss': np.zeros(2)}, 'metrics: count is missing'),
    (
      GOOD | {'accuracy': np.zeros(3)},
      r'metrics.accuracy: must be an array \[workers\], of shape \(2,\), but '
      r'has shape \(3,\)',
    ),
    (GOOD | {'loss': 1.0}, r'metrics.loss: must .* but has shape \(\)'),
    (GOOD | {'step': np.zeros(2)}, 'metrics.step: is the name of a built'),
    (GOOD | {'test_loss': np.zeros(2)}, 'metrics.test_loss: is the name'),
    (GOOD | {'my loss': np.zeros(2)}, "metric 'my loss': the name must"),
  ],
)
def test_metrics_that_cannot_make_a_row_are_refused(metrics, message, tmp_path):
  recorder = ss.Recorder(tmp_path, **OPTIONS)
  with recorder, pytest.raises(ValueError, match=message):
    recorder.step(metrics)


def test_metrics_have_the_same_names_at_every_step(tmp_path):
  with ss.Recorder(tmp_path, **OPTIONS) as recorder:
    recorder.step(GOOD | {'norm': np.ones(2)})
    recorder.step(GOOD | {'norm': np.ones(2)})
    with pytest.raises(ConfigError, match='metrics: norm, rank: must be given'):
      recorder.step(GOOD | {'rank': np.ones(2)})
  assert [row['norm'] for row in history.read(tmp_path).rows] == [1, 1]


WITHOUT_ORBAX = """
import sys
sys.modules['orbax'] = None
import numpy as np
import selsync_jax as ss
strategy = ss.Strategy(ss.every(4), ss.mean())
options = dict(workers=2, strategy=strategy, params={'w': np.zeros(5)})
with ss.Recorder(sys.argv[1], **options) as recorder:
  recorder.step(dict.fromkeys(('loss', 'count', 'synced'), np.zeros(2)))
"""


def test_a_recorder_needs_no_orbax(tmp_path):
  done = live_runs.run(sys.executable, '-c', WITHOUT_ORBAX, tmp_path)
  assert done.returncode == 0, done.stderr
  assert len(history.read(tmp_path).rows) == 1


def test_a_folder_may_be_in_the_home_of_the_user(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  with ss.Recorder('~/run', **OPTIONS) as recorder:
    recorder.step(GOOD)
  assert len(history.read(tmp_path / 'run').rows) == 1


def test_rows_also_go_to_the_loggers_of_the_trainer(tmp_path):
  workdir, to = tmp_path / 'mine', ['tensorboard']
  with ss.Recorder(workdir, to=to, **OPTIONS) as recorder:
    record(recorder, range(1, 4))
  events = recorded.events(workdir)
  assert 'validation_accuracy' in events and len(events['loss']) == 3
  with pytest.raises(ConfigError, match=r"^to=\['csv'\]: 'csv' is not one of"):
    ss.Recorder(tmp_path / 'other', to=['csv'], **OPTIONS)


def test_scores_without_a_step_of_their_own_are_refused(tmp_path):
  with ss.Recorder(tmp_path, **OPTIONS) as recorder:
    recorder.step(GOOD)
    recorder.flush()
    with pytest.raises(ConfigError, match='evaluate: must come after a step'):
      recorder.evaluate(dict, {'loss': 1.0})


def test_a_folder_that_does_not_fit_is_refused(tmp_path):
  workdir = tmp_path / 'mine'
  with ss.Recorder(workdir, **OPTIONS) as recorder:
    with pytest.raises(ConfigError, match='another process is writing'):
      ss.Recorder(workdir, **OPTIONS).__enter__()
    record(recorder, range(1, 5))
    recorder.finish()
  with pytest.raises(ConfigError, match='holds a finished run of 4 steps'):
    ss.Recorder(workdir, **OPTIONS)
  with pytest.raises(ConfigError, match=r'step=9: .* no row of this step'):
    ss.Recorder(workdir, step=9, **OPTIONS)
  with pytest.raises(ConfigError, match=r'workers=4: must be 2, as in '):
    ss.Recorder(workdir, step=4, **OPTIONS | {'workers': 4})
  other = {'config': {'width': 8}} | OPTIONS
  with pytest.raises(ConfigError, match='width was None, now 8'):
    ss.Recorder(workdir, step=4, **other).__enter__()
  with ss.Recorder(workdir, restart=True, **other) as recorder:
    record(recorder, range(1, 3))
  assert len(history.read(workdir).rows) == 2
  assert len(history.read(tmp_path / 'mine.1').rows) == 4


@pytest.mark.parametrize(
  'config, message',
  [
    ({'workers': 3}, 'config.workers: the recorder sets it; leave it out'),
    ({'data': 'digits'}, r'config: .* `\$.data`'),
    ({'model': jax.numpy.ones}, 'config: .* is not JSON serializable'),
  ],
)
def test_a_config_that_cannot_be_read_back_is_refused(
  config, message, tmp_path
):
  with pytest.raises(ConfigError, match=message):
    ss.Recorder(tmp_path / 'mine', config=config, **OPTIONS)
  assert not (tmp_path / 'mine').exists()
