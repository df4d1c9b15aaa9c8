"""The report in a real browser, as on a desk and as on a phone."""

from collections.abc import Iterator
import json
import os
import pathlib
import select
import shutil
import subprocess

import pytest

from selsync_jax.configs import digits
from selsync_jax.report import run_page
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
    pipes = f'3<&{its_in} 4>&{its_out}'  # Where it reads and writes.
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
    self._session = {}
    target = self.call('Target.createTarget', url='about:blank')['targetId']
    page = self.call('Target.attachToTarget', targetId=target, flatten=True)
    self._session = page  # Its `sessionId` goes with every further command.
    for domain in ('Page', 'Runtime', 'Log'):
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
    raise AssertionError('unreachable')

  def open(self, url: str) -> list[dict]:
    """Loads a page; returns what was said on its console meanwhile."""
    self.call('Page.navigate', url=url)
    said = []
    for event in self._messages:
      if event.get('method') == 'Page.loadEventFired':
        return said
      if event.get('method') in CONSOLE:
        said.append(event['params'])
    raise AssertionError('unreachable')

  def evaluate(self, expression: str):
    """The value of an expression in the page."""
    result = self.call(
      'Runtime.evaluate', expression=expression, returnByValue=True
    )
    return result['result']['value']

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
EYES = """(() => {
  const box = (e) => e.getBoundingClientRect();
  const seen = (e) => box(e).width > 0 && box(e).height > 0;
  const texts = [...document.querySelectorAll('svg text')].filter(seen);
  return {
    width: innerWidth,
    content: document.documentElement.scrollWidth,
    figures: [...document.querySelectorAll('figure')].map((figure) =>
      [...figure.querySelectorAll('svg')].filter(seen).map((svg) => ({
        width: box(svg).width,
        height: box(svg).height,
        panels: [...svg.querySelectorAll('[id*=-axes_]')].map((panel) =>
          [...panel.querySelectorAll('path')].filter(seen).length),
      }))),
    smallest: Math.min(...texts.map((text) => box(text).height)),
    rightmost: Math.max(...texts.map((text) => box(text).right)),
    paper: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(texts[0]).fill,
  };
})()"""


@pytest.fixture(scope='module')
def workdir(tmp_path_factory, data_dir, perceptron):
  """A run with everything that a page can show."""
  workdir = tmp_path_factory.mktemp('run')
  config = digits.get_config()
  config.update(workers=4, mapper='vmap', steps=20)
  config.data.update(dir=data_dir, partition='dirichlet', dirichlet_alpha=1.0)
  config.model.name = perceptron
  train_and_evaluate(config, workdir)
  run_page.write([workdir], workdir)
  return workdir


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
  browser = Browser(tmp_path_factory.mktemp('profile'))
  yield browser
  browser.close()


# Workers' strips and the bars above them; panels of what is shared; labels.
PANELS = [5, 2, 4, 4, 4, 4]


@pytest.mark.parametrize('mode', ['light', 'dark'])
@pytest.mark.parametrize('width', [1280, 390])
def test_every_figure_shows_and_none_is_cut_off(browser, workdir, width, mode):
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
  assert browser.open((workdir / 'report.html').as_uri()) == []
  seen = browser.evaluate(EYES)
  assert seen['width'] == width
  assert seen['content'] <= width and seen['rightmost'] <= width
  assert len(seen['figures']) == len(PANELS)
  for (drawing,), panels in zip(seen['figures'], PANELS, strict=True):
    assert drawing['width'] >= 0.8 * min(width, 1080)
    assert drawing['height'] > 100
    assert len(drawing['panels']) == panels
    assert all(lines > 0 for lines in drawing['panels'])
  assert seen['smallest'] >= 11  # Of a line of text, in pixels.
  light = {'paper': 'rgb(255, 255, 255)', 'ink': 'rgb(31, 35, 41)'}
  for name, color in light.items():
    assert (seen[name] == color) == (mode == 'light')


def test_an_error_on_the_console_would_be_noticed(browser, workdir):
  text = (workdir / 'report.html').read_text()
  broken = workdir / 'broken.html'
  broken.write_text(
    text.replace('</body>', '<script>nothing.here()</script></body>')
  )
  (said,) = browser.open(broken.as_uri())
  error = said['exceptionDetails']['exception']['description']
  assert 'nothing is not defined' in error
