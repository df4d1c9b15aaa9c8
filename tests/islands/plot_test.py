"""The figure of islands that join and leave."""

import functools

import pytest

from selsync_jax.__main__ import run_command
from selsync_jax.islands import journal, plot
from tests.support import recorded

LONG = 'in-the-other-cluster'
ODD = r'o$\x$'  # Matplotlib would read a formula.
HAPPENED = [
  ('joined', 'maui', 0, []),
  ('joined', ODD, 0, []),
  ('joined', LONG, 1, [LONG, 'maui', ODD]),
  ('ended', ODD, 2, [LONG, 'maui']),
  ('returned', ODD, 2, [LONG, 'maui']),
  ('admitted', ODD, 3, [LONG, 'maui', ODD]),
  ('left', 'maui', 3, []),
]


@pytest.fixture
def log(tmp_path, monkeypatch):
  """A log of events, ten seconds apart; a crash has cut off a line."""
  path, now = tmp_path / 'events.jsonl', iter(range(1000, 2000, 10))
  monkeypatch.setattr(journal.time, 'time', lambda: float(next(now)))
  said = []
  events = journal.Journal(said.append, path)
  for kind, name, generation, present in HAPPENED:
    events.add(kind, name, kind, generation, present)
  events.close()
  path.write_text(path.read_text() + '{"time": 10')
  assert said == [f'{name} {kind}' for kind, name, *_ in HAPPENED]
  return path


def test_each_span_and_each_event_is_drawn_where_it_was(log):
  events = journal.read(log)
  totals = functools.reduce(journal.Totals.after, events, journal.Totals())
  assert totals.participation(1060.0) == pytest.approx(10 / 12)
  share, island = plot.plot(events).panels
  (line,) = share.marks
  held = dict(zip(line.x, line.y, strict=True))  # By the end of each time.
  assert held == {0: 0, 10: 0, 20: 0, 30: 1, 40: 2 / 3, 50: 2 / 3, 60: 1}
  assert share.x.label == 'seconds' and share.x.limits == (0, 60)
  assert island.y.names == ['…cluster', 'maui', ODD]
  trains, *marks = island.marks
  spans = zip(trains.rows, trains.starts, trains.stops, strict=True)
  assert {*spans} == {(0, 20, 60), (1, 20, 60), (2, 20, 30), (2, 50, 60)}
  assert {mark.name: [*zip(mark.x, mark.y, strict=True)] for mark in marks} == {
    'joins': [(0, 1), (10, 2), (20, 0)],
    'ends': [(30, 2)],
    'rejoins': [(40, 2)],
    'is let in': [(50, 2)],
    'leaves': [(60, 1)],
    'finishes': [],
  }


@pytest.mark.slow
def test_the_report_of_a_run_shows_its_islands(log, tmp_path, refused):
  workdir = tmp_path / 'run'
  recorded.write_run(workdir, recorded.random_changes(30, 3))
  run_command(['report', str(workdir), f'--islands={log}'])
  page = (workdir / 'report.html').read_text()
  assert 'On average 83.3% of the islands took part.' in page
  assert (workdir / 'plots' / 'islands.png').exists()
  log.write_text('{}\n')
  line = f'report: --islands={log}: holds no events'
  assert refused('report', workdir, f'--islands={log}') == line
