"""`selsync delta`: what it suggests, and that a run confirms it."""

import pathlib
import re

import numpy as np
import pytest

from selsync_jax.__main__ import run_command
from selsync_jax.configs import digits
from selsync_jax.training.train import train_and_evaluate

ROOT = pathlib.Path(__file__).parents[2]
DIGITS = f'{ROOT}/configs/digits.py'
SIZE = {
  'workers': 4,
  'steps': 150,
  'mapper': 'vmap',
  'data.backend': 'numpy',
  'model.name': 'perceptron',
}


@pytest.fixture(scope='module')
def suggested(tmp_path_factory, data_dir, perceptron):
  """The folder and the output of the command, on a small run."""
  del perceptron
  out = tmp_path_factory.mktemp('delta')
  fields = SIZE | {'data.dir': data_dir}
  with pytest.MonkeyPatch.context() as patch:
    lines = []
    patch.setattr('builtins.print', lambda *args: lines.append(args[0]))
    run_command(
      [
        'delta',
        *(f'--config.{name}={value}' for name, value in fields.items()),
        f'--config={DIGITS}',
        '--steps=100',
        '--lssr=0.8',
        f'--out={out}',
      ]
    )
  return out, '\n'.join(map(str, lines))


@pytest.mark.slow
def test_a_fresh_run_reaches_the_wanted_lssr(suggested, tmp_path, data_dir):
  _, output = suggested
  config = digits.get_config()
  fields = SIZE | {'data.dir': data_dir, 'seed': 7}
  config.update_from_flattened_dict(fields)
  config.sync.delta = float(re.search(r'sync\.delta=(\S+)', output)[1])
  summary = train_and_evaluate(config, tmp_path)
  assert summary['lssr'] == pytest.approx(0.8, abs=0.1)


@pytest.mark.slow
def test_lssr_over_delta_is_a_table_a_picture_and_a_page(suggested):
  out, output = suggested
  rows = re.findall(r'^ +([\d.]+) +([\d.]+) +([\d.]+)$', output, re.M)
  table = np.array(rows, float)
  assert len(table) >= 3
  assert (np.diff(table, axis=0) >= 0).all()  # More delta, more local steps.
  assert (out / 'plots' / 'delta.png').read_bytes()[:4] == b'\x89PNG'
  page = (out / 'delta.html').read_text()
  assert '<section id="delta">' in page and page.count('class="chart"') == 1
  for lssr in table[:, 1]:
    assert f'<td>{lssr:.2f}</td>' in page


@pytest.mark.parametrize(
  'flags, words',
  [
    (['--config=configs/digits.py:bsp'], 'method bsp has no delta'),
    (['--lssr=1'], '--lssr=1: must be a number in [0, 1)'),
    (
      ['--lssr=0.5', '--config.sync.delay=20'],
      '--lssr=0.5: config.sync.delay allows 0.95 at least',
    ),
    (['--lssr=most'], '--lssr=most: must be a number in [0, 1)'),
    (['--steps=0'], '--steps=0: must be a whole number of at least 1'),
    (
      [
        '--lssr=0.9',
        '--config.sync.max_period=5',
        '--config.sync.vote_every=2',
      ],
      '--lssr=0.9: config.sync.max_period=5 allows 0.833 at most',
    ),
    (
      ['--config.sync.max_period=5', '--config.sync.vote_every=0'],
      'config.sync.vote_every=0: must be at least 1',
    ),
    (
      ['--steps=19', '--config.sync.vote_every=10'],
      '--steps=19: must be at least 20, two votes with '
      'config.sync.vote_every=10',
    ),
    (['--config.sync.dleta=3'], '--config.sync.dleta=3: this config has no'),
    (['--config.workers=0'], 'config.workers=0: must be in [1, 4096]'),
  ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
  flags, words, monkeypatch, capsys
):
  monkeypatch.chdir(ROOT)
  with pytest.raises(SystemExit) as end:
    run_command(['delta', *flags])
  assert end.value.code == 2
  output = capsys.readouterr().err
  assert output.startswith('delta: ') and words in output
  assert output.count('\n') == 1
