"""`selsync simulate`: its flags and its mistakes."""

import json
import pathlib

import pytest

from selsync_jax import __main__ as door
from tests.support import recorded

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_a_cluster_of_the_command_line_is_simulated(tmp_path, capsys):
  door.run_command(
    [
      'simulate',
      f'--config={ROOT}/configs/hyperplane.py:ssp',
      '--config.workers=2',
      '--config.steps=6',
      '--config.sync.staleness=1',
      '--config.virtual_cluster.compute=factors',
      '--config.virtual_cluster.factors=(1,4)',
      '--config.virtual_cluster.step_seconds=1.0',
      f'--workdir={tmp_path}',
      '--noreport',
    ]
  )
  summary = json.loads((tmp_path / 'summary.json').read_text())
  # The fast worker's steps end at 1, 2, 5, 9, 13, 17 and 21 seconds, the slow
  # worker's at 4, 8, 12, 16 and 20. The fast worker waited 2 + 4 x 3 seconds.
  assert summary['virtual_seconds'] == 21
  assert summary['waited'] == 14 / 2
  assert 'virtual seconds' in capsys.readouterr().out
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config['mapper'] == 'vmap' and config['sync']['method'] == 'ssp'
  seconds = recorded.events(tmp_path)['virtual_seconds']
  assert len(seconds) == 6 and seconds[-1] == (6, 21)


def test_a_bad_trace_is_one_line_and_leaves_nothing(tmp_path, refused):
  trace, workdir = tmp_path / 'trace.csv', tmp_path / 'run'
  trace.write_text('1,2\n')
  flags = ['compute=trace', f'trace={trace}']
  error = refused(
    'simulate',
    '--config.data.backend=numpy',
    *('--config.workers=2', '--config.steps=300', f'--workdir={workdir}'),
    *(f'--config.virtual_cluster.{flag}' for flag in flags),
  )
  assert error == (
    f'simulate: config.virtual_cluster: trace={trace}: needs a row for each of '
    '300 steps, got 1'
  )
  assert not workdir.exists()
