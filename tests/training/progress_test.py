"""Output of a run while it trains."""

import re

import pytest

from selsync_jax.training.progress import Progress
from tests.support.marks import slow
from tests.support.terminal import on_terminal

ROWS = [
  {
    'step': step,
    'loss': 1 / step,
    'lssr': 0.5,
    **({'validation_accuracy': 0.75} if step == 4 else {}),
  }
  for step in range(1, 10)
]

SHOW = f"""
import time
from selsync_jax.training.progress import Progress
with Progress(0, 10, 30.0) as progress:
  for row in {ROWS}:
    progress.show(row)
    time.sleep(0.01)
"""


@pytest.mark.parametrize('width', [20, slow(40), slow(200)])
def test_a_terminal_of_any_width_shows_everything(width):
  shown = on_terminal(width, '-c', SHOW)
  *_, bar = re.findall(r'.*9/10.*', shown)
  assert re.search(r'0:00:0\d', bar), bar
  after = shown[shown.rindex(bar) :]
  for value in ('loss 0.1111', 'LSSR 0.500', 'validation accuracy 0.7500'):
    assert set(value.split()) <= set(after.split())
  assert max(map(len, shown.splitlines())) <= width


def test_without_a_terminal_there_is_a_line_for_each_evaluation(
  capsys, monkeypatch
):
  monkeypatch.setenv('FORCE_COLOR', '1')  # A notebook sets it.
  with Progress(0, 10, 30.0) as progress:
    for row in ROWS:
      progress.show(row)
  (line,) = capsys.readouterr().out.splitlines()
  assert line.startswith('step 4/10  ') and ' left  loss 0.2500  ' in line
  assert line.endswith('validation accuracy 0.7500')


def test_between_evaluations_there_is_one_when_it_is_due(capsys):
  with Progress(0, 10, 1e-9) as progress:
    for row in ROWS:
      progress.show(row)
  lines = capsys.readouterr().out.splitlines()
  assert [line.split()[1] for line in lines] == [
    f'{i}/10' for i in range(1, 10)
  ]
  assert lines[-1].endswith('validation accuracy 0.7500')  # The last one.


# Slow imports fail, and so do modules that import them.
STARTING = """
import sys
sys.modules.update(jax=None, flax=None, tensorflow=None)
from selsync_jax.__main__ import main
main(['train'])  # Ends with the reason.
"""


def test_something_is_on_the_screen_before_anything_heavy_is_imported():
  first, second, *_ = on_terminal(80, '-c', STARTING, code=1).splitlines()
  assert first == 'starting'
  assert 'jax' in second
