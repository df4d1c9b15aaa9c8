"""The loop of docs/recipes/own_loop.py, in one process and in two."""

import os
import re
import signal
import sys

import pytest

from tests.support import live_runs
from tests.support.pages import blocks

RECIPE = live_runs.ROOT / 'docs' / 'recipes' / 'own_loop.py'
TWO_DEVICES = os.environ | {'JAX_NUM_CPU_DEVICES': '2'}


def test_the_page_shows_what_the_recipe_does():
  (shown,) = (
    text
    for _, text in blocks('docs/own-loop.md', 'text')
    if 'ss.join()' in text
  )
  assert shown in RECIPE.read_text()


@pytest.mark.slow
def test_two_processes_stop_and_one_goes_on_as_if_nothing_had_been(tmp_path):
  parted, whole = tmp_path / 'parted', tmp_path / 'whole'
  loop = sys.executable, str(RECIPE)
  two = [*live_runs.LAUNCH, '--processes=2', '--', *loop, parted, str(10**6)]
  child = live_runs.start([*map(str, two)])
  for line in child.stdout:
    if 'step 100:' in line:
      break
  child.send_signal(signal.SIGTERM)
  code, lines = live_runs.outcome(child)
  assert code == 75, lines
  stopped = max(int(path.name) for path in parted.iterdir())
  assert stopped >= 100
  steps = str(stopped - stopped % 100 + 200)
  resumed, straight = (
    live_runs.run(*loop, folder, steps, env=TWO_DEVICES).stdout.splitlines()
    for folder in (parted, whole)
  )
  assert resumed == straight[-len(resumed) :]
  assert re.match(rf'step {steps}: loss 0\.\d+, synchronized: ', resumed[-1])
