"""The page of a run: its numbers, its lines, its odd cases."""

import html
import json
import re
import shutil

import numpy as np
import pytest

from selsync_jax.configs import digits
from selsync_jax.report import canvas
from selsync_jax.report import plots
from selsync_jax.report import run_page
from selsync_jax.runs import history
from selsync_jax.training.train import train_and_evaluate
from tests.report import recorded
from tests.report.shown import Panel
from tests.report.shown import section
from tests.report.shown import table


def run(workdir, data_dir, method='selsync', **fields):
  config = digits.get_config(method)
  config.update({'workers': 3, 'mapper': 'vmap'} | fields)
  config.data.dir = data_dir
  train_and_evaluate(config, workdir)
  return run_page.write([workdir], workdir).read_text()


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  return tmp_path_factory.mktemp('run')


@pytest.fixture(scope='module')
def text(workdir, data_dir):
  """The page of a real run of 30 steps."""
  return run(workdir, data_dir, steps=30)


def rows_of(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


def summary_of(workdir):
  return json.loads((workdir / 'summary.json').read_text())


def copy(workdir, to, lines=None):
  """A run as it stands after so many lines of metrics, unfinished."""
  to.mkdir()
  (to / 'config.json').write_text((workdir / 'config.json').read_text())
  kept = (workdir / 'metrics.jsonl').read_text().splitlines(keepends=True)
  (to / 'metrics.jsonl').write_text(''.join(kept[:lines]))
  return to


def test_the_tables_hold_the_numbers_of_the_summary(text, workdir):
  summary, shown = summary_of(workdir), table(text, 'summary')
  assert shown == {
    'test accuracy of the consensus': summary['test_accuracy'],
    'test loss': summary['test_loss'],
    'test top5 of the consensus': summary['test_top5'],
    'validation accuracy of the consensus': summary['validation_accuracy'],
    'validation top5 of the consensus': summary['validation_top5'],
    'validation loss': summary['validation_loss'],
    'steps': summary['steps'],
    'synchronizations': summary['sync_steps'],
    'LSSR (local steps / steps)': summary['lssr'],
    'bytes sent per worker': summary['bytes_per_worker'],
    'the same run under BSP': summary['bytes_per_worker_bsp'],
    'seconds': summary['seconds'],
    'samples/s': summary['samples_per_second'],
  }


def test_the_headline_says_what_was_reached_and_what_it_cost(text, workdir):
  summary = summary_of(workdir)
  share = summary['bytes_per_worker'] / summary['bytes_per_worker_bsp']
  assert (
    f'<h1>Validation accuracy {summary["validation_accuracy"]:.1%} for '
    f'{share:.1%} of the traffic of BSP</h1>'
  ) in text


COSTS = ['step', 'samples', 'bytes_per_worker', 'seconds']


@pytest.mark.parametrize('cost', COSTS)
@pytest.mark.parametrize('field', ['accuracy', 'validation_accuracy'])
def test_a_line_is_the_metrics_over_a_cost(text, workdir, field, cost):
  rows = [row for row in rows_of(workdir) if field in row]
  line = int(field == 'validation_accuracy')
  panel = Panel(text, 'accuracy', 1 + COSTS.index(cost))
  x, y = panel.line(f'{field}-{cost}-{line}')
  most = max(row[cost] for row in rows)
  np.testing.assert_allclose(x, [row[cost] for row in rows], atol=1e-3 * most)
  np.testing.assert_allclose(y, [row[field] for row in rows], atol=1e-3)


def test_lssr_and_bytes_are_those_of_the_metrics(text, workdir):
  rows = rows_of(workdir)
  for number, field in enumerate(['lssr', 'bytes_per_worker'], 1):
    _, y = Panel(text, 'communication', number).line(f'{field}-0')
    expected = [row[field] for row in rows]
    np.testing.assert_allclose(y, expected, atol=1e-3 * max(expected))


@pytest.mark.parametrize('worker', range(3))
@pytest.mark.parametrize('layout', ['wide', 'narrow'])
def test_every_worker_has_its_changes(text, workdir, worker, layout):
  panel = Panel(text, 'changes', 2 + worker, layout)
  _, y = panel.line(f'change-{worker}', log=True)
  expected = [row['relative_changes'][worker] for row in rows_of(workdir)[1:]]
  assert len(y) == 30
  np.testing.assert_allclose(y[1:], expected, rtol=0.01)


def test_a_worker_that_left_has_its_changes_until_then(
  text, workdir, data_dir, tmp_path
):
  resized = tmp_path / 'resized'
  shutil.copytree(workdir, resized)
  shown = run(resized, data_dir, workers=2, steps=50)
  steps = len(rows_of(resized))
  assert steps > 30
  for worker, last in enumerate((steps, steps, 30)):
    x, _ = Panel(shown, 'changes', 2 + worker).line(f'change-{worker}')
    np.testing.assert_allclose(x, 1 + np.arange(last), atol=0.1)


def test_the_bars_stand_where_the_run_synchronized(workdir):
  (changes, *_) = plots.all_plots([history.read(workdir)])
  bars = changes.draw(canvas.WIDE).axes[0].patches[0].get_data()
  rows = rows_of(workdir)
  assert list(bars.values) == [row['synced'] for row in rows]
  assert list(bars.edges) == [0.5 + step for step in range(31)]


def test_the_config_is_there_field_by_field(text, workdir):
  shown = section(text, 'config')
  for field, value in (('sync.delta', 1.0), ('workers', 3), ('steps', 30)):
    assert f'<th scope="row">{field}</th><td>{value}</td>' in shown


def test_the_page_needs_no_network_and_no_script(text):
  assert not re.search(r'<script|<link[^>]*href="(?!data:)|<img|@import', text)
  assert 'http' not in text


def test_every_figure_is_a_file_too(text, workdir):
  names = re.findall(r'<section id="(\w+)"><h2>[^<]*</h2><figure>', text)
  assert names == ['changes', 'communication', 'loss', 'accuracy', 'top5']
  for name in names:
    head = (workdir / 'plots' / f'{name}.png').read_bytes()[:24]
    assert head.startswith(b'\x89PNG')
    assert int.from_bytes(head[16:20]) == 2 * canvas.WIDE.width


def test_no_id_stands_twice(text):
  ids = re.findall(r' id="([^"]*)"', text)
  assert len(ids) == len(set(ids))


def test_a_run_that_crashed_shows_what_it_reached(workdir, text, tmp_path):
  crashed = copy(workdir, tmp_path / 'crashed', 20)
  torn = (workdir / 'metrics.jsonl').read_text().splitlines()[20][:50]
  with (crashed / 'metrics.jsonl').open('a') as file:
    file.write(torn)
  shown = run_page.write([crashed], crashed).read_text()
  rows, facts = rows_of(workdir)[:20], table(shown, 'summary')
  (scored,) = [row for row in rows if 'validation_loss' in row]
  assert '<h1>Not finished: 20 steps, ' in shown
  assert facts['steps'] == 20
  assert facts['synchronizations'] == sum(row['synced'] for row in rows)
  assert facts['bytes sent per worker'] == rows[-1]['bytes_per_worker']
  assert facts['validation loss'] == scored['validation_loss']


def test_a_crash_before_the_first_evaluation_is_shown_too(workdir, tmp_path):
  crashed = copy(workdir, tmp_path / 'crashed', 3)
  shown = run_page.write([crashed], crashed).read_text()
  assert '<h1>Not finished: 3 steps, not scored so far</h1>' in shown


def test_one_step_without_a_synchronization_is_a_sound_run(tmp_path, data_dir):
  text = run(tmp_path, data_dir, 'local_sgd', steps=1)
  facts = table(text, 'summary')
  assert facts['steps'] == 1 and facts['synchronizations'] == 0
  assert facts['bytes sent per worker'] == 0
  x, y = Panel(text, 'communication', 1).line('lssr-0')
  np.testing.assert_allclose([*x, *y], [1, 1], atol=1e-3)


def test_a_non_iid_run_shows_who_has_which_labels(workdir, text, tmp_path):
  uneven = copy(workdir, tmp_path / 'uneven')
  counts = [[5, 0, 1], [0, 4, 2], [1, 1, 4]]
  (uneven / 'data.json').write_text(json.dumps({'labels': counts}))
  config = json.loads((uneven / 'config.json').read_text())
  config['data']['partition'] = 'by_label'
  (uneven / 'config.json').write_text(json.dumps(config))
  *_, labels = plots.all_plots([history.read(uneven)])
  for layout in (canvas.WIDE, canvas.NARROW):
    axes = labels.draw(layout).axes
    drawn = [list(ax.patches[0].get_data().values) for ax in axes]
    assert drawn == counts


def test_several_runs_share_a_page(workdir, text, tmp_path):
  other = copy(workdir, tmp_path / 'half & half', 15)
  shown = run_page.write([workdir, other], tmp_path / 'both').read_text()
  names = [run.name for run in history.read_all([workdir, other])]
  assert f'<h1>Best of 2 runs: {names[0]}, ' in shown
  head = re.search('<thead>.*?</thead>', section(shown, 'summary'))[0]
  assert all(html.escape(name) in head for name in names)
  x, _ = Panel(shown, 'communication', 1).line('lssr-1')
  np.testing.assert_allclose(x, np.arange(1, 16), atol=0.05)
  assert len(list((tmp_path / 'both' / 'plots').iterdir())) == 6


@pytest.mark.slow
def test_fifty_thousand_steps_are_under_3_mb(tmp_path):
  workdir = tmp_path / 'long'
  changes = recorded.random_changes(50_000, 16)
  changes[31_234, 5] = 777.0  # One spike, at a step of its own.
  recorded.write_run(workdir, changes)
  path = run_page.write([workdir], workdir)
  assert path.stat().st_size < 3e6
  x, y = Panel(path.read_text(), 'changes', 2 + 5).line('change-5', log=True)
  assert y.max() == pytest.approx(777, rel=0.05)
  assert x[y.argmax()] == pytest.approx(31_235, abs=20)


@pytest.mark.parametrize(
  'scores, headline',
  [
    (
      {'validation_loss': None, 'validation_accuracy': 0.1},
      'Validation accuracy 10.0%',
    ),
    ({'validation_loss': None, 'validation_perplexity': None}, 'Not scored'),
    ({'validation_loss': None}, 'Not scored'),
  ],
)
def test_a_run_whose_loss_is_not_finite_has_a_page(scores, headline, tmp_path):
  workdir = tmp_path / 'run'
  recorded.write_run(workdir, recorded.random_changes(3, 2))
  summary = recorded.summary(3, **scores)
  (workdir / 'summary.json').write_text(json.dumps(summary))
  assert headline in run_page.write([workdir], workdir).read_text()
