"""Runs each benchmark once, as small as possible. No figure is judged."""

import json
import sys

import pytest

from tests.support import emulated, live_runs

COMMANDS = {
  'speed.overhead': ['--widths=4', '--steps=2', '--rounds=1', '--workers=2'],
  'speed.loop': ['--configs=digits', '--steps=40', '--rounds=1'],
  'speed.start': ['--rounds=1', '--config.data.backend=numpy'],
  'speed.gaps': ['--tiny', '--round=0', '--steps=2'],
  'speed.mappers': ['--workers=2', '--steps=1', '--rounds=1'],
  'speed.beside_torch': ['--workers=2', '--steps=2', '--rounds=1'],
  'speed.input': ['digits', '--seconds=0.1', '--repeats=1'],
  'network.steps': [
    *('--hosts=2', '--bandwidths=100mbit'),
    *('--width=4', '--steps=2', '--rounds=1'),
  ],
  'network.islands': [
    *('--islands=2', '--size=1000', '--period=4', '--step=1', '--rounds=1')
  ],
  'network.hidden': [
    *('--hosts=2', '--size=1000', '--period=2', '--step=1', '--rounds=1')
  ],
  'network.relay': ['--size=1000', '--period=2', '--rounds=1'],
  'network.grid': [
    *('--hosts=2', '--bandwidths=100mbit', '--periods=2', '--wires=int4'),
    *('--size=1000', '--step=1', '--steps=4'),
  ],
  'network.ahead': ['--step=1', '--steps=50', '--skipped=4'],
  'network.votes': ['--islands', '2', '--votes=2'],
  'network.beside_peers': ['--sides=islands', '--workers=2', '--kills=1'],
  'network.wires': [
    *('--hosts=2', '--bandwidth=100mbit', '--width=4', '--steps=2'),
    *('--rounds=1', '--parts', 'int8', 'top_k'),
  ],
}


@pytest.mark.usefixtures('data_dir')
@pytest.mark.slow
@pytest.mark.parametrize('name', COMMANDS)
def test_a_benchmark_prints_a_table_and_writes_a_json(name, tmp_path):
  masked = name == 'network.relay'
  if name.startswith('network') and (reason := emulated.missing(masked=masked)):
    pytest.skip(reason)
  if name == 'speed.beside_torch':
    pytest.importorskip('torch', reason="needs the extra 'reference' (torch)")
  flags = [*COMMANDS[name], f'--out={tmp_path}/out.json']
  done = live_runs.run(sys.executable, '-m', f'benchmarks.{name}', *flags)
  assert done.returncode == 0, done.stderr
  assert len(done.stdout.splitlines()) > 1
  assert json.loads((tmp_path / 'out.json').read_text())
