"""Pages of runs whose records are written here: odd, long, and compared."""

import json
import re

import numpy as np
import pytest

from selsync_jax.report import metric_plot, run_page, run_plots
from selsync_jax.report.figure import Band
from selsync_jax.runs import history, records
from tests.support import recorded
from tests.support.shown import figure, line, marks, section

without_files = pytest.mark.usefixtures('no_files')


def with_scores(workdir, score, metric='accuracy'):
  """Adds a metric on validation to every row of a run."""
  rows = records.read_metrics(workdir)
  for row in rows:
    scores = {f'validation_{metric}': score(row['step'])}
    row |= {**scores, 'validation_loss': 1.0}
  lines = [json.dumps(row) + '\n' for row in rows]
  (workdir / 'metrics.jsonl').write_text(''.join(lines))


def change_config(workdir, **fields):
  path = workdir / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def write_run(workdir, steps, workers=2, data=None, config=(), **scores):
  """Writes a run with scores; returns its page."""
  recorded.write_run(workdir, recorded.random_changes(steps, workers))
  for metric, score in scores.items():
    with_scores(workdir, score, metric)
  if data:
    records.write(workdir, records.DATA, {'labels': None, **data})
  change_config(workdir, **dict(config))
  return run_page.write([workdir], workdir).read_text()


@without_files
def test_the_axis_of_a_share_is_where_the_scores_settle(tmp_path):
  text = write_run(
    tmp_path / 'run',
    100,
    accuracy=lambda step: 0.1 if step <= 10 else 0.95 + step / 1e4,
  )
  low, high = figure(text, 'accuracy')['wide']['yaxis1']['range']
  assert 0.9 < low < 0.95
  assert 0.96 < high < 1.01
  _, y = line(text, 'accuracy', 1, 'validation, consensus')
  assert y[0] == 0.1  # Visible after zooming out.


@without_files
@pytest.mark.parametrize(
  'metric, first, last', [('bleu_score', 30, 36), ('r2_score', -0.9, -0.3)]
)
def test_a_score_that_is_no_share_is_shown_as_it_is(
  metric, first, last, tmp_path
):
  goal = {'goal': {'main': metric, 'higher': [metric]}}
  score = {metric: lambda i: first + (last - first) * (i - 1) / 10}
  text = write_run(tmp_path / 'run', 11, data=goal, **score)
  low, high = figure(text, metric)['wide']['yaxis1']['range']
  assert low < first < last < high
  assert f'validation {metric} {last} so far' in text
  assert 'below the axis' not in section(text, metric)


def test_only_a_metric_of_the_training_batches_is_said_to_be_one(tmp_path):
  recorded.write_run(tmp_path / 'run', recorded.random_changes(10, 2))
  with_scores(tmp_path / 'run', lambda step: 100 / step, 'perplexity')
  loss, perplexity = metric_plot.of_run(history.read(tmp_path / 'run'))
  assert ', and of the training batches.' in loss.caption
  assert list(loss.legend) == ['training batches', 'validation, consensus']
  assert 'training batches' not in perplexity.caption
  assert [mark.name for mark in perplexity.panels[0].marks] == [
    'validation, consensus'
  ]


@pytest.mark.parametrize('steps', [20, 100])
def test_a_gray_band_of_training_batches_has_its_words(steps, tmp_path):
  recorded.write_run(tmp_path / 'run', recorded.random_changes(steps, 2))
  (plot,) = metric_plot.of_run(history.read(tmp_path / 'run'))
  bands = [m for m in plot.panels[0].marks if isinstance(m, Band)]
  assert len(bands) == (steps == 100)
  assert plot.caption.count('Gray band: 80% of the') == len(bands)


@without_files
def test_reports_of_a_custom_method_are_drawn(tmp_path):
  workdir = tmp_path / 'run'
  recorded.write_run(workdir, recorded.random_changes(10, 2))
  with_scores(workdir, lambda step: step / 10)
  rows = [
    row | {'doublings': row['step'] / 2, 'senders': 1}
    for row in records.read_metrics(workdir)
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  (workdir / 'metrics.jsonl').write_text(text)
  page = run_page.write([workdir], workdir).read_text()
  titles = figure(page, 'reported')['wide']['annotations']
  assert [each['text'] for each in titles] == ['doublings', 'senders']
  x, y = line(page, 'reported', 1, 'run')
  assert list(y) == [step / 2 for step in x]


@without_files
def test_changes_that_decide_nothing_do_not_say_when_workers_synchronize(
  tmp_path,
):
  workdir = tmp_path / 'run'
  recorded.write_run(workdir, recorded.random_changes(10, 2))
  heading = '<h2>When workers synchronize</h2>'
  assert heading in run_page.write([workdir], workdir).read_text()
  change_config(workdir, sync={'method': 'local_sgd', 'period': 8})
  text = run_page.write([workdir], workdir).read_text()
  assert heading not in text
  sections = re.findall('<section id="(.*?)"', text)
  assert sections.index('changes') > sections.index('communication')


@pytest.mark.parametrize('steps, workers', [(20, 2), (10, 3)])
def test_bytes_are_drawn_relative_to_bsp_if_all_runs_agree_on_bsps(
  steps, workers, tmp_path
):
  runs = []
  for i, (length, count) in enumerate([(10, 2), (steps, workers)]):
    workdir = tmp_path / str(i)
    recorded.write_run(workdir, recorded.random_changes(length, count))
    sent = {'bytes_per_worker_bsp': 1000 * length * (count - 1)}
    summary = recorded.summary(length, count, **sent)
    (workdir / 'summary.json').write_text(json.dumps(summary))
    runs.append(history.read(workdir))
  plot = run_plots.communication(runs)
  agree = workers == 2
  assert ('BSP would have sent' in plot.legend) == agree
  assert ('against BSP (dotted)' in plot.caption) == agree


def test_a_line_over_seeds_is_their_mean_in_a_band_that_holds_them(tmp_path):
  runs = []
  for seed in range(3):
    workdir = tmp_path / str(seed)
    recorded.write_run(workdir, recorded.random_changes(10, 2))
    with_scores(workdir, lambda step, seed=seed: step * (1 + seed) / 100)
    runs.append(history.read(workdir))
  _, plot = metric_plot.of_groups({'ours': runs, 'one': runs[:1]})
  band, mean, one = plot.panels[0].marks
  steps = np.arange(1, 11)
  np.testing.assert_allclose(mean.y, steps * 2 / 100)
  np.testing.assert_allclose([band.low, band.high], [steps / 100, steps * 0.03])
  np.testing.assert_allclose(one.y, steps / 100)


@without_files
def test_a_loss_has_the_unit_that_its_task_gives_it(tmp_path):
  data = {'units': {'loss': 'squared error'}}
  assert '"loss (squared error)"' in write_run(tmp_path / 'run', 4, data=data)


@without_files
def test_runs_with_different_metrics_share_a_page(tmp_path):
  workdirs = [tmp_path / 'a', tmp_path / 'b']
  for workdir in workdirs:
    recorded.write_run(workdir, recorded.random_changes(10, 2))
  with_scores(workdirs[0], lambda step: step / 10)
  rows = [
    row | {'validation_top5': 0.5} for row in records.read_metrics(workdirs[1])
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  (workdirs[1] / 'metrics.jsonl').write_text(text)
  shown = run_page.write(workdirs, tmp_path / 'both').read_text()
  assert list(line(shown, 'top5', 1, 'b')[1]) == [0.5] * 10
  assert not marks(shown, 'top5', 1, 'a')


@without_files
@pytest.mark.parametrize(
  'steps, workers',
  [
    (2_000, 16),
    (50, 500),
    pytest.param(50_000, 16, marks=pytest.mark.slow),
  ],
)
def test_a_long_or_wide_run_is_bands_on_a_small_page(steps, workers, tmp_path):
  workdir = tmp_path / 'run'
  changes = recorded.random_changes(steps, workers)
  changes[steps // 2, 5] = 777.0  # One spike, at its own step.
  recorded.write_run(workdir, changes)
  path = run_page.write([workdir], workdir)
  assert path.stat().st_size < 1.5e6
  text = path.read_text()
  panel = 2 + (5 if workers == 16 else 0)
  entry = 'smallest to largest' if workers == 16 else 'all workers'
  low, high = marks(text, 'changes', panel, entry)
  assert min(low['y']) <= min(high['y']) and max(high['y']) == 777
  votes = marks(text, 'changes', panel, 'votes to synchronize')
  assert steps // 2 + 1 in [step for mark in votes for step in mark['x']]


@without_files
@pytest.mark.parametrize('steps', [20, 1000])
def test_an_infinite_delta_has_no_line(steps, tmp_path):
  sync = {'method': 'selsync', 'delta': float('inf')}
  text = write_run(tmp_path / 'run', steps, config={'sync': sync})
  assert 'A worker that reaches delta = inf votes' in text
  assert not marks(text, 'changes', 2, 'delta')


@pytest.mark.parametrize(
  'scores, headline',
  [
    (
      {'validation_loss': None, 'validation_accuracy': 0.1},
      'Validation accuracy 10.0%',
    ),
    ({'validation_loss': None, 'validation_perplexity': None}, 'Not scored'),
    ({'validation_loss': None, 'samples_per_second': None}, 'Not scored'),
  ],
)
def test_a_run_of_unknown_figures_has_a_page(scores, headline, tmp_path):
  workdir = tmp_path / 'run'
  recorded.write_run(workdir, recorded.random_changes(3, 2))
  summary = recorded.summary(3, **scores)
  (workdir / 'summary.json').write_text(json.dumps(summary))
  assert headline in run_page.write([workdir], workdir).read_text()
