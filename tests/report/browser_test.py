"""The report in a real browser, on a desktop screen and on a phone."""

import functools
import html
import json
import re
import shutil
import subprocess

import pytest

from selsync_jax.report import page, run_page
from selsync_jax.report.tables import Cell
from tests.support import short_runs

CHROMIUM = next(
  filter(None, map(shutil.which, ('chromium', 'google-chrome', 'chrome'))), None
)
pytestmark = pytest.mark.skipif(
  CHROMIUM is None, reason='no chromium or chrome on this machine'
)
FLAGS = (
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--no-first-run',
  '--disable-background-networking',
  '--hide-scrollbars',
  '--window-size=1280,800',
  '--enable-logging=stderr',
  '--virtual-time-budget=20000',
  '--dump-dom',
)
# A window has a least width, a frame has none.
FRAME = """<!doctype html><body>
<script>onmessage = (told) => document.body.textContent = told.data</script>
<iframe src="probed.html" width="{width}" height="800"></iframe></body>"""
# A page without figures draws nothing.
PROBE = """<script>Promise.resolve(typeof drawn === 'undefined' || drawn)
.then(async () => {
  const fetched = performance.getEntriesByType('resource').map((e) => e.name);
  parent.postMessage(JSON.stringify({fetched, seen: PROBES}), '*');
})</script></body>"""


def look(path, width, mode, *probes):
  """Opens a page on a screen; returns the console's lines and probes' values.

  A probe is an expression, or a promise, that sees the drawn figures.
  """
  values = f'[{", ".join(f"await {probe}" for probe in probes)}]'
  text = path.read_text().replace('</body>', PROBE.replace('PROBES', values))
  path.with_name('probed.html').write_text(text)
  frame = path.with_name('frame.html')
  frame.write_text(FRAME.format(width=width))
  done = subprocess.run(
    [
      *(CHROMIUM, *FLAGS, f'--user-data-dir={path.parent / "profile"}'),
      f'--blink-settings=preferredColorScheme={int(mode == "light")}',
      frame.as_uri(),
    ],
    capture_output=True,
    text=True,
    timeout=60,
    check=True,
  )
  said = re.findall(r'CONSOLE.*', done.stderr)
  answer = re.search(r'<body>(\{.*\})</body>', done.stdout)
  assert answer, said
  told = json.loads(html.unescape(answer[1]))
  assert told['fetched'] == []
  return said, told['seen']


EYES = """(() => {
  const box = (e) => {
    const {left, top, right, bottom} = e.getBoundingClientRect();
    return {left, top, right, bottom};
  };
  const all = (e, selector) => [...e.querySelectorAll(selector)];
  const texts = all(document, '.chart text').filter((e) => e.textContent);
  return {
    width: innerWidth,
    content: document.documentElement.scrollWidth,
    figures: all(document, '.chart').map((chart) => ({
      box: box(chart),
      panels: all(chart, '.nsewdrag').map(box),
      drawn: all(chart, '.trace path, .point path').length,
      texts: all(chart, 'text').filter((e) => e.textContent).map(box),
    })),
    paper: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.querySelector('.annotation text')).fill,
  };
})()"""
# Moves the pointer to a place in a panel, and reads the label there.
HOVER = """(async () => {
  const chart = document.querySelector('#loss .chart');
  const hovered = new Promise((told) => chart.once('plotly_hover', told));
  const panel = chart.querySelector('.nsewdrag');
  const {left, top, width, height} = panel.getBoundingClientRect();
  const place = {clientX: left + 0.7 * width, clientY: top + height / 2};
  for (const kind of ['mouseover', 'mousemove']) {
    panel.dispatchEvent(new MouseEvent(kind, {bubbles: true, ...place}));
  }
  await hovered;
  const lines = chart.querySelectorAll('.hoverlayer text');
  return [...lines].map((line) => line.textContent);
})()"""
# Clicks the last entry of a legend; counts its lines before and after.
SWITCH = """(async () => {
  const figure = document.querySelector('#loss figure');
  const chart = figure.querySelector('.chart');
  const count = () => figure.querySelectorAll('.scatterlayer .trace').length;
  const button = [...figure.querySelectorAll('button')].pop();
  const counts = [count()];
  for (const _ of 'ab') {
    const drawn = new Promise((done) => chart.once('plotly_afterplot', done));
    button.click();
    await drawn;
    counts.push(count());
  }
  return counts;
})()"""


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run that has everything a page can show."""
  workdir = tmp_path_factory.mktemp('run')
  unequal = {'data__partition': 'dirichlet', 'data__dirichlet_alpha': 1.0}
  short_runs.run(workdir, steps=20, **unequal)
  run_page.write([workdir], workdir)
  return workdir


@pytest.fixture(scope='module')
def seen(workdir):
  """Looks at the page of that run on a screen, at each screen once."""

  @functools.cache
  def at(width, mode):
    probes = EYES, HOVER, SWITCH
    said, values = look(workdir / 'report.html', width, mode, *probes)
    assert said == []
    return values

  return at


# Workers' strips and the bars above them; shared bars; rate; labels.
PANELS = [5, 1, 2, 4, 4, 4, 1, 4]


@pytest.mark.slow
def test_all_columns_of_a_comparison_are_in_view_on_a_desk(tmp_path):
  cells = {
    'validation accuracy': (0.85, '0.8500 ± 0.0255'),
    'difference to BSP': (-0.0222, '-0.0222 [-0.0824, +0.0379]'),
    'of BSP': (1.0, '100.0%'),
    'sent per worker': (18.2e6, '18.2 MB'),
    'LSSR': (0.917, '0.917 ± 0.058'),
    'test accuracy': (0.85, '0.8500 ± 0.0147'),
    'virtual seconds': (1.0, '1,234.5 ± 10.3'),
    'waited': (1.0, '123.4 ± 10.3'),
    'learning rate': (0.1, '0.1'),
    'seeds': (3, '3'),
    'steps': (3000, '3,000'),
  }
  row = {title: Cell(*cell) for title, cell in cells.items()}
  rows = {'fedavg, epochs 0.25': row}
  table = page.table('summary', 'Comparison', rows, 'method')
  path = page.write(tmp_path / 'report.html', 'Comparison', '', [table])
  box = "document.querySelector('.scroll')"
  sizes = f'{box}.scrollWidth', f'{box}.clientWidth'
  said, (content, shown) = look(path, 1200, 'light', *sizes)
  assert said == [] and content <= shown


def overlap(one, other):
  """Whether two boxes share more than a pixel of their edges."""
  return (
    one['left'] + 1 < other['right']
    and other['left'] + 1 < one['right']
    and one['top'] + 1 < other['bottom']
    and other['top'] + 1 < one['bottom']
  )


@pytest.mark.parametrize(
  'width, mode',
  [
    (1280, 'light'),
    (420, 'dark'),
    pytest.param(1280, 'dark', marks=pytest.mark.slow),
    pytest.param(420, 'light', marks=pytest.mark.slow),
  ],
)
def test_every_figure_shows_and_no_label_is_cut_off_or_over_data(
  seen, width, mode
):
  shown, _, _ = seen(width, mode)
  assert shown['width'] == width
  assert shown['content'] <= width
  assert [len(each['panels']) for each in shown['figures']] == PANELS
  for figure in shown['figures']:
    frame = figure['box']
    assert frame['right'] - frame['left'] >= 0.8 * min(width, 1080)
    assert figure['drawn'] >= len(figure['panels'])
    for text in figure['texts']:
      assert text['bottom'] - text['top'] >= 11
      assert frame['left'] <= text['left'] and text['right'] <= width
      assert not any(overlap(text, panel) for panel in figure['panels'])
  light = {'paper': 'rgb(255, 255, 255)', 'ink': 'rgb(31, 35, 41)'}
  for name, color in light.items():
    assert (shown[name] == color) == (mode == 'light')


@pytest.mark.parametrize('width, mode', [(1280, 'light'), (420, 'dark')])
def test_a_pointer_reads_values_and_the_legend_switches_lines(
  seen, workdir, width, mode
):
  _, (step, *values), (one, hidden, again) = seen(width, mode)
  name, _, number = step.partition(': ')
  assert name == 'steps'
  (row,) = [r for r in rows(workdir) if r['step'] == int(number)]
  assert f'training batches: {row["loss"]:.4g}' in values
  assert one == again > hidden > 0


def rows(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def test_an_error_on_the_console_would_be_noticed(workdir):
  text = (workdir / 'report.html').read_text()
  broken = workdir / 'broken.html'
  broken.write_text(
    text.replace('</body>', '<script>nothing.here()</script></body>')
  )
  (said,), _ = look(broken, 1280, 'light')
  assert 'nothing is not defined' in said
