"""The benchmarks run: each once, as small as it goes. No figure is judged."""

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks import cluster

ROOT = pathlib.Path(__file__).parent.parent
EMULATED = cluster.missing()

COMMANDS = {
  'overhead': ['--width=4', '--steps=2', '--rounds=1', '--workers=2'],
  'loop': ['--configs=digits', '--steps=40', '--rounds=1'],
  'input': ['digits', '--seconds=0.1', '--repeats=1'],
  'network': [
    *('--hosts=2', '--bandwidths=100mbit'),
    *('--width=4', '--steps=2', '--rounds=1'),
  ],
  'time_to_accuracy': [
    *('--methods=bsp', '--lrs=0.1', '--seeds=1', '--config.steps=40'),
    *('--config.workers=2', '--config.model.width=4'),
  ],
}


@pytest.mark.parametrize('name', COMMANDS)
def test_a_benchmark_prints_a_table_and_writes_a_json(name, tmp_path, data_dir):
  if name in ('network', 'time_to_accuracy') and EMULATED:
    pytest.skip(EMULATED)
  flags = [*COMMANDS[name], f'--out={tmp_path}/out.json']
  if name == 'time_to_accuracy':
    flags += [f'--work={tmp_path}', f'--config.data.dir={data_dir}']
  done = subprocess.run(
    [sys.executable, '-m', f'benchmarks.{name}', *flags],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert len(done.stdout.splitlines()) > 1
  assert json.loads((tmp_path / 'out.json').read_text())
