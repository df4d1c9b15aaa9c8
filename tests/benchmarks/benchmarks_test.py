"""The benchmarks run: each once, as small as it goes. No figure is judged.

Not time_to_accuracy as a whole: seven processes, a minute at the least.
"""

import json
import pathlib
import sys

import pytest

from benchmarks import cluster
from tests import live_runs

ROOT = pathlib.Path(__file__).parents[2]
EMULATED = cluster.missing()

COMMANDS = {
  'overhead': ['--widths=4', '--steps=2', '--rounds=1', '--workers=2'],
  'loop': ['--configs=digits', '--steps=40', '--rounds=1'],
  'start': ['--rounds=1', '--config.data.backend=numpy'],
  'mappers': ['--workers=2', '--steps=1', '--rounds=1'],
  'input': ['digits', '--seconds=0.1', '--repeats=1'],
  'network': [
    *('--hosts=2', '--bandwidths=100mbit'),
    *('--width=4', '--steps=2', '--rounds=1'),
  ],
  'wires': [
    *('--hosts=2', '--bandwidth=100mbit', '--width=4', '--steps=2'),
    *('--rounds=1', '--parts', 'int8', 'top_k'),
  ],
}
SLOW = ('input', 'loop', 'mappers', 'network', 'overhead', 'start', 'wires')


@pytest.mark.usefixtures('data_dir')
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else [])
    for name in COMMANDS
  ],
)
def test_a_benchmark_prints_a_table_and_writes_a_json(name, tmp_path):
  if name in ('network', 'wires') and EMULATED:
    pytest.skip(EMULATED)
  flags = [*COMMANDS[name], f'--out={tmp_path}/out.json']
  done = live_runs.run(sys.executable, '-m', f'benchmarks.{name}', *flags)
  assert done.returncode == 0, done.stderr
  assert len(done.stdout.splitlines()) > 1
  assert json.loads((tmp_path / 'out.json').read_text())
