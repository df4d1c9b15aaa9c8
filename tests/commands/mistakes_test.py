"""Mistakes on the command line, in `mistakes.txt`: COMMAND => LINE.

`...` in a line stands for any text.
"""

import pathlib
import shlex

import pytest

from tests.support.lines import fits

LINES = pathlib.Path(__file__).with_name('mistakes.txt')
# Arguments of each command before the arguments of a case.
DEFAULTS = {
  'compare': '--methods=selsync,bsp --seeds=1',
  'simulate': '--config.steps=300',
  'tune': '--config=hyperplane --methods=local_sgd --step=5ms',
}
QUICK = '--config.data.backend=numpy --config.mapper=vmap'
CASES = [row.split(' => ') for row in LINES.read_text().splitlines()]


@pytest.mark.parametrize('command, line', CASES, ids=[c for c, _ in CASES])
def test_a_mistake_is_one_line_and_exit_code_2_and_leaves_nothing(
  command, line, refused, monkeypatch, tmp_path
):
  monkeypatch.chdir(tmp_path)
  name, *given = shlex.split(command)
  if name in DEFAULTS:
    given = [*f'{DEFAULTS[name]} {QUICK}'.split(), *given]
  assert fits(f'{name}: {line}', refused(name, *given))
  assert not [*tmp_path.iterdir()]
