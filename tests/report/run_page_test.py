"""The page of a run: its numbers, its lines, how the run stopped."""

import dataclasses
import html
import json
import re
import shutil

import numpy as np
import pytest

from selsync_jax.report import facts as run_facts
from selsync_jax.report import run_page
from selsync_jax.report.figure import WIDE
from selsync_jax.runs import history
from tests.support import short_runs
from tests.support.session import make_once
from tests.support.shown import figure, line, marks, section, table


def run(workdir, method='selsync', **fields):
  own = {'workers': 3, 'model__num_filters': 32, 'eval__every_epochs': 1.0}
  short_runs.run(workdir, method, **own | fields)
  return run_page.write([workdir], workdir).read_text()


@pytest.fixture(scope='module')
def workdir():
  """The folder of a real run of 30 steps, with its page; read only."""
  return make_once('page', lambda folder: run(folder, steps=30))


@pytest.fixture(scope='module')
def text(workdir):
  """The page of that run."""
  return (workdir / run_page.REPORT).read_text()


def rows_of(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


def summary_of(workdir):
  return json.loads((workdir / 'summary.json').read_text())


def copy(workdir, to, lines=None):
  """An unfinished run after its first lines of metrics."""
  to.mkdir()
  (to / 'config.json').write_text((workdir / 'config.json').read_text())
  for name in ('metrics.jsonl', 'workers.jsonl'):
    kept = (workdir / name).read_text().splitlines(keepends=True)
    (to / name).write_text(''.join(kept[:lines]))
  return to


def test_the_tables_hold_the_numbers_of_the_summary(text, workdir):
  summary, shown = summary_of(workdir), table(text, 'summary')
  assert shown == {
    'test accuracy of the consensus': summary['test_accuracy'],
    'test top5 of the consensus': summary['test_top5'],
    'test loss': summary['test_loss'],
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


NAME = 'page'  # Name of the folder and of the lines.
LINES = [
  *(
    ('accuracy', panel, entry, field, cost)
    for panel, cost in enumerate(
      ('step', 'samples', 'bytes_per_worker', 'seconds'), 1
    )
    for entry, field in (
      ('training batches', 'accuracy'),
      ('validation, consensus', 'validation_accuracy'),
    )
  ),
  ('reported', 1, NAME, 'lr', 'step'),
  ('communication', 1, NAME, 'lssr', 'step'),
  ('communication', 2, NAME, 'bytes_per_worker', 'step'),
]


@pytest.mark.parametrize('plot, panel, entry, field, cost', LINES)
def test_a_line_has_the_numbers_of_the_rows(
  text, workdir, plot, panel, entry, field, cost
):
  rows = [row for row in rows_of(workdir) if field in row]
  x, y = line(text, plot, panel, entry)
  np.testing.assert_allclose(x, [row[cost] for row in rows], rtol=1e-5)
  np.testing.assert_allclose(y, [row[field] for row in rows], rtol=1e-5)


def test_the_step_that_compiles_takes_no_time(workdir):
  first, second, *_ = rows_of(workdir)
  assert first['seconds'] == 0 < second['seconds']
  assert first['samples_per_second'] is None


def test_the_loss_of_a_classifier_is_in_nats(text):
  assert '"loss (nats)"' in text


@pytest.mark.parametrize('worker', range(3))
def test_every_worker_has_its_changes(text, workdir, worker):
  _, y = line(text, 'changes', 2 + worker, 'relative change')
  changes = history.read(workdir).changes[:, worker]
  assert np.isinf(changes[0]) and np.isnan(y[0])  # Drawn as a triangle.
  np.testing.assert_allclose(y[1:], changes[1:], rtol=1e-5)
  votes = marks(text, 'changes', 2 + worker, 'votes to synchronize')
  steps = [step for mark in votes for step in mark['x']]
  assert sorted(steps) == [i + 1 for i in np.flatnonzero(changes >= 1.0)]


@pytest.mark.slow
def test_a_worker_that_left_has_its_changes_until_then(text, workdir, tmp_path):
  resized = tmp_path / 'resized'
  shutil.copytree(workdir, resized)
  shown = run(resized, workers=2, steps=50)
  steps = len(rows_of(resized))
  assert steps > 30
  for worker, last in enumerate((steps, steps, 30)):
    x, y = line(shown, 'changes', 2 + worker, 'relative change')
    assert x[np.isfinite(y)].max() == last


def test_the_bars_stand_where_the_run_synchronized(text, workdir):
  x, y = line(text, 'changes', 1, 'synchronized')
  assert list(x) == [row['step'] for row in rows_of(workdir) if row['synced']]
  assert set(y) == {1}


def test_the_config_is_there_field_by_field_with_defaults_folded(text):
  shown, folded = section(text, 'config').split('<details>')
  for field, value in (('sync.delta', 1.0), ('workers', 3), ('steps', 30)):
    assert f'<th scope="row">{field}</th><td>{value}</td>' in shown
  for field, value in (('seed', 0), ('log.to', '[&#39;tensorboard&#39;]')):
    assert f'<th scope="row">{field}</th><td>{value}</td>' in folded


def test_the_page_loads_nothing(text):
  with_script = re.sub('<noscript>.*?</noscript>', '', text)
  loads = r'<script[^>]*src|<link[^>]*href="(?!data:)|<img|@import|http'
  assert not re.search(loads, with_script)


def test_every_figure_is_a_file_too(text, workdir):
  names = re.findall(r'<section id="([\w-]+)"><h2>[^<]*</h2><figure>', text)
  assert names == [
    *('changes', 'delta', 'communication'),
    *('loss', 'accuracy', 'top5', 'reported'),
  ]
  for name in names:
    head = (workdir / 'plots' / f'{name}.png').read_bytes()[:24]
    assert head.startswith(b'\x89PNG')
    assert int.from_bytes(head[16:20]) == 2 * WIDE.width


def test_no_id_occurs_twice(text):
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


@pytest.mark.slow
@pytest.mark.parametrize('capacity', [None, 1.0])
def test_a_sparse_run_shows_what_did_not_fit(capacity, tmp_path):
  """Messages may be too short with a capacity; without, they never are."""
  fields = {'capacity': capacity, 'density': 0.01}
  own = {f'sync__{name}': value for name, value in fields.items()}
  short_runs.run(tmp_path, 'micro', steps=6, **own)
  shown = run_page.write([tmp_path], tmp_path).read_text()
  titles = figure(shown, 'reported')['wide']['annotations']
  rows = rows_of(tmp_path)
  names = ['overflow'] * bool(capacity) + ['selection', 'lr']
  assert [each['text'] for each in titles] == names
  for panel, name in enumerate(names, 1):
    _, values = line(shown, 'reported', panel, tmp_path.name)
    expected = [row[name] for row in rows]
    np.testing.assert_allclose(values, expected, rtol=1e-4)
  assert capacity is None or max(row['overflow'] for row in rows) > 0


@pytest.mark.slow
def test_one_step_without_a_synchronization_is_a_sound_run(tmp_path):
  text = run(tmp_path, 'local_sgd', steps=1)
  facts = table(text, 'summary')
  assert facts['steps'] == 1 and facts['synchronizations'] == 0
  assert facts['bytes sent per worker'] == 0
  x, y = line(text, 'communication', 1, tmp_path.name)
  assert [*x, *y] == [1, 1]


def test_a_non_iid_run_shows_which_worker_has_which_labels(
  workdir, text, tmp_path
):
  uneven = copy(workdir, tmp_path / 'uneven')
  counts = [[5, 0, 1], [0, 4, 2], [1, 1, 4]]
  (uneven / 'data.json').write_text(json.dumps({'labels': counts}))
  config = json.loads((uneven / 'config.json').read_text())
  config['data']['partition'] = 'by_label'
  (uneven / 'config.json').write_text(json.dumps(config))
  shown = run_page.write([uneven], uneven).read_text()
  for worker, row in enumerate(counts, 1):
    assert list(line(shown, 'labels', worker, 'examples')[1]) == row


def test_several_runs_share_a_page(workdir, text, tmp_path):
  other = copy(workdir, tmp_path / 'half & half', 15)
  shown = run_page.write([workdir, other], tmp_path / 'both').read_text()
  names = [run.name for run in history.read_all([workdir, other])]
  assert f'<h1>Best of 2 runs: {names[0]}, ' in shown
  head = re.search('<thead>.*?</thead>', section(shown, 'summary'))[0]
  assert all(html.escape(name) in head for name in names)
  x, _ = line(shown, 'communication', 1, names[1])
  assert list(x) == list(range(1, 16))
  files = {path.stem for path in (tmp_path / 'both' / 'plots').iterdir()}
  assert files == {'communication', 'loss', 'accuracy', 'top5', 'reported'}


def test_of_runs_of_different_tasks_none_is_the_best(workdir, tmp_path):
  first = history.read(workdir)
  config = {**first.config, 'data': {**first.config['data'], 'name': 'cifar10'}}
  other = dataclasses.replace(first, config=config)
  assert run_facts.headline([first, other]) == '2 runs of different tasks'
