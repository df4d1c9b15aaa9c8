"""benchmarks.speed.accelerator, on a CPU."""

import importlib.util
import json
import os
import sys

import pytest

from tests.support import live_runs

SECTIONS = ('torch', 'steps', 'parts', 'workers', 'travel')
BLOCKED = """
import runpy, sys
for name in ('tensorflow', 'tensorflow_datasets', 'ml_collections', 'sklearn',
             'simpy', 'matplotlib', 'jinja2'):
  sys.modules[name] = None  # Importing it raises ImportError.
NAME = 'benchmarks.speed.accelerator'
runpy.run_module(NAME, run_name='__main__', alter_sys=True)
"""


@pytest.mark.slow
def test_every_section_is_measured_without_tensorflow(tmp_path):
  out = tmp_path / 'out.json'
  flags = [
    *('--tiny', '--most=2', '--round=0', '--seconds=900', f'--out={out}'),
    *('--workers', '2', '--workloads', 'decoder 10M'),
  ]
  done = live_runs.run(
    *(sys.executable, '-c', BLOCKED, *flags),
    env=os.environ | {'TORCHDYNAMO_DISABLE': '1'},
    timeout=600,
  )
  assert done.returncode == 0, done.stderr
  rows = json.loads(out.read_text())['rows']
  by_section = {
    section: [r for r in rows if r['section'] == section]
    for section in SECTIONS
  }
  assert {row.get('not_measured') for row in rows} <= {
    None,
    'PyTorch is not installed',
  }
  for row in by_section['steps']:
    assert row['per_second'] > 0 and row['flops_per_second'] > 0
  assert {row.get('part') for row in by_section['parts']} > {
    'local step',
    '+ lax.cond, quiet',
    'synchronizing',
  }
  if importlib.util.find_spec('torch'):
    assert {'of_torch'} <= by_section['steps'][0].keys()
  (travel,) = by_section['travel']
  assert travel['only_inside'], travel
  assert travel['elements_outside'] < 10  # The vote.
  assert len(done.stdout.splitlines()) == len(rows) + 1
