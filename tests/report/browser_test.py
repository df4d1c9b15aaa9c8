"""The report in a real browser, on a desktop screen and on a phone."""

from collections.abc import Iterator
import json
import os
import pathlib
import select
import shutil
import subprocess

import pytest

from selsync_jax.configs import digits
from selsync_jax.report import page, run_page
from selsync_jax.report.tables import Cell
from selsync_jax.training.train import train_and_evaluate

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
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--remote-debugging-pipe',
)


class Browser:
  """Chromium, driven by its DevTools protocol over a pair of pipes."""

  def __init__(self, profile: pathlib.Path):
    its_in, self._out = os.pipe()
    self._in, its_out = os.pipe()
    command = [CHROMIUM, *FLAGS, f'--user-data-dir={profile}']
    pipes = f'3<&{its_in} 4>&{its_out}'  # For its input and output.
    self._process = subprocess.Popen(
      ['bash', '-c', f'exec "$@" {pipes}', 'bash', *command],
      pass_fds=(its_in, its_out),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    os.close(its_in)
    os.close(its_out)
    self._messages = self._read()
    self._count = 0
    self._events: list[dict] = []  # Since the page was opened.
    self._session = {}
    target = self.call('Target.createTarget', url='about:blank')['targetId']
    page = self.call('Target.attachToTarget', targetId=target, flatten=True)
    self._session = page  # Its `sessionId` goes with every further command.
    for domain in ('Page', 'Runtime', 'Log', 'Network'):
      self.call(f'{domain}.enable')

  def _read(self) -> Iterator[dict]:
    rest = b''
    while True:
      *whole, rest = rest.split(b'\0')
      yield from map(json.loads, whole)
      assert select.select([self._in], [], [], 60)[0], 'the browser is silent'
      more = os.read(self._in, 1 << 16)
      assert more, 'the browser has gone'
      rest += more

  def call(self, method: str, **params) -> dict:
    """Sends a command, and waits for its result."""
    self._count += 1
    message = {'id': self._count, 'method': method, 'params': params}
    os.write(self._out, json.dumps(message | self._session).encode() + b'\0')
    for answer in self._messages:
      if answer.get('id') == self._count:
        return answer['result']
      self._events.append(answer)
    raise AssertionError('unreachable')

  def open(self, url: str) -> list[dict]:
    """Loads a page; returns its console output and requests, errors included.

    The figures are drawn when this returns.
    """
    self._events = []
    loader = self.call('Page.navigate', url=url)['loaderId']
    while not self._is_loaded(loader):
      self._events.append(next(self._messages))
    self.evaluate('drawn')
    return [
      event['params']
      for event in self._events
      if event.get('method') in CONSOLE
      or (
        event.get('method') == FETCH
        and event['params']['request']['url'] not in (url, ICON)
      )
    ]

  def _is_loaded(self, loader: str) -> bool:
    """Whether a page has loaded; the previous page may fire its event late."""
    methods = [
      event['method']
      if event['params'].get('frame', {}).get('loaderId') in (None, loader)
      else None
      for event in self._events
    ]
    begun = 'Page.frameNavigated' in methods
    return (
      begun
      and 'Page.loadEventFired'
      in methods[methods.index('Page.frameNavigated') :]
    )

  def evaluate(self, expression: str):
    """The value of an expression in the page, or of its promise."""
    result = self.call(
      'Runtime.evaluate',
      expression=expression,
      returnByValue=True,
      awaitPromise=True,
    )
    assert 'exceptionDetails' not in result, result['exceptionDetails']
    return result['result'].get('value')

  def close(self) -> None:
    """Ends the browser."""
    self._process.terminate()
    self._process.wait(20)
    os.close(self._in)
    os.close(self._out)


CONSOLE = (
  'Runtime.consoleAPICalled',
  'Runtime.exceptionThrown',
  'Log.entryAdded',
)
FETCH, ICON = 'Network.requestWillBeSent', 'data:,'
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
def workdir(tmp_path_factory, perceptron):
  """A run that has everything a page can show."""
  workdir = tmp_path_factory.mktemp('run')
  config = digits.get_config()
  config.update(workers=4, mapper='vmap', steps=20)
  config.data.update(backend='numpy', partition='dirichlet')
  config.data.dirichlet_alpha = 1.0
  config.model.name = perceptron
  train_and_evaluate(config, workdir)
  run_page.write([workdir], workdir)
  return workdir


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
  browser = Browser(tmp_path_factory.mktemp('profile'))
  yield browser
  browser.close()


# Workers' strips and the bars above them; shared bars; rate; labels.
PANELS = [5, 1, 2, 4, 4, 4, 1, 4]


def show(browser, workdir, width, mode):
  """Opens the page on a screen."""
  browser.call(
    'Emulation.setDeviceMetricsOverride',
    width=width,
    height=800,
    deviceScaleFactor=2,
    mobile=width < 800,
  )
  browser.call(
    'Emulation.setEmulatedMedia',
    features=[{'name': 'prefers-color-scheme', 'value': mode}],
  )
  return browser.open((workdir / 'report.html').as_uri())


@pytest.mark.slow
def test_all_columns_of_a_comparison_are_in_view_on_a_desk(browser, tmp_path):
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
  page.write(tmp_path / 'report.html', 'Comparison', '', [table])
  assert show(browser, tmp_path, 1200, 'light') == []
  seen = browser.evaluate(
    "(e => [e.scrollWidth, e.clientWidth])(document.querySelector('.scroll'))"
  )
  assert seen[0] <= seen[1]


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
  browser, workdir, width, mode
):
  assert show(browser, workdir, width, mode) == []
  seen = browser.evaluate(EYES)
  assert seen['width'] == width
  assert seen['content'] <= width
  assert [len(each['panels']) for each in seen['figures']] == PANELS
  for figure in seen['figures']:
    frame = figure['box']
    assert frame['right'] - frame['left'] >= 0.8 * min(width, 1080)
    assert figure['drawn'] >= len(figure['panels'])
    for text in figure['texts']:
      assert text['bottom'] - text['top'] >= 11
      assert frame['left'] <= text['left'] and text['right'] <= width
      assert not any(overlap(text, panel) for panel in figure['panels'])
  light = {'paper': 'rgb(255, 255, 255)', 'ink': 'rgb(31, 35, 41)'}
  for name, color in light.items():
    assert (seen[name] == color) == (mode == 'light')


@pytest.mark.parametrize('width', [1280, 420])
def test_a_pointer_reads_values_and_the_legend_switches_lines(
  browser, workdir, width
):
  assert show(browser, workdir, width, 'light') == []
  step, *values = browser.evaluate(HOVER)
  name, _, number = step.partition(': ')
  assert name == 'steps'
  (row,) = [r for r in rows(workdir) if r['step'] == int(number)]
  assert f'training batches: {row["loss"]:.4g}' in values
  one, hidden, again = browser.evaluate(SWITCH)
  assert one == again > hidden > 0


def rows(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def test_an_error_on_the_console_would_be_noticed(browser, workdir):
  text = (workdir / 'report.html').read_text()
  broken = workdir / 'broken.html'
  broken.write_text(
    text.replace('</body>', '<script>nothing.here()</script></body>')
  )
  (said,) = browser.open(broken.as_uri())
  error = said['exceptionDetails']['exception']['description']
  assert 'nothing is not defined' in error
