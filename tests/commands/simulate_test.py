"""`selsync simulate`: its flags and its mistakes."""

import csv
import json
import pathlib

import pytest

from selsync_jax import __main__ as door

ROOT = pathlib.Path(__file__).parents[2]
ONLY = 'only `python -m selsync_jax simulate` has virtual time'


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
      '--config.log.to=csv',
      f'--workdir={tmp_path}',
      '--noreport',
    ]
  )
  summary = json.loads((tmp_path / 'summary.json').read_text())
  # The fast worker's steps end at 1, 2, 5, 9, 13, 17 and 21 seconds, the slow
  # one's at 4, 8, 12, 16 and 20. The fast one has waited 2 + 4 x 3 seconds.
  assert summary['virtual_seconds'] == 21
  assert summary['waited'] == 14 / 2
  assert 'virtual seconds' in capsys.readouterr().out
  config = json.loads((tmp_path / 'config.json').read_text())
  assert config['mapper'] == 'vmap' and config['sync']['method'] == 'ssp'
  with (tmp_path / 'metrics.csv').open() as file:
    seconds = [float(row['virtual_seconds']) for row in csv.DictReader(file)]
  assert len(seconds) == 6 and seconds[-1] == 21


CLUSTER = 'config.virtual_cluster: '
BAD = [
  (
    ['compute=delay'],
    "config.virtual_cluster.compute: 'delay' is not one of constant, factors, "
    'lognormal, delays, skewed, outages, trace',
  ),
  (
    ['compute=factors', 'factors=(1,-2)'],
    'config.virtual_cluster.factors=(1, -2): must be above 0',
  ),
  (
    ['compute=factors', 'factors=(1,2,3)'],
    f'{CLUSTER}factors=(1, 2, 3): needs one number for each of 2 workers',
  ),
  (
    ['compute=delays', 'late=3'],
    f'{CLUSTER}late=3: must be in [0, 2] (workers)',
  ),
  (
    ['compute=delays', 'sigma=1'],
    'config.virtual_cluster.sigma=1.0: delays has no sigma',
  ),
  (['compute=factors'], f'{CLUSTER}factors needs factors'),
  (
    ['compute=trace', 'trace=TRACE'],
    f'{CLUSTER}trace=TRACE: needs a row for each of 300 steps, got 1',
  ),
  (
    ['step_seconds=0'],
    'config.virtual_cluster.step_seconds=0.0: must be above 0',
  ),
  (
    ['bandwidth=1'],
    'config.virtual_cluster.bandwidth: must be a number and one of',
  ),
]


@pytest.mark.parametrize(
  'method', ['bsp', pytest.param('asp', marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('fields, line', BAD)
def test_a_bad_cluster_is_one_line_and_leaves_nothing(
  method, fields, line, tmp_path, refused
):
  trace, workdir = tmp_path / 'trace.csv', tmp_path / 'run'
  trace.write_text('1,2\n')
  error = refused(
    'simulate',
    f'--config={ROOT}/configs/digits.py:{method}',
    '--config.data.backend=numpy',
    '--config.workers=2',
    '--config.steps=300',
    *(
      f'--config.virtual_cluster.{f}'.replace('TRACE', str(trace))
      for f in fields
    ),
    f'--workdir={workdir}',
  )
  line = line.replace('TRACE', str(trace))
  assert error.startswith(f'simulate: {line}')
  assert not workdir.exists()


@pytest.mark.parametrize(
  'flags, line',
  [
    (
      ['--config.virtual_cluster.compute=delays'],
      f"config.virtual_cluster.compute='delays': {ONLY}",
    ),
    (
      [f'--config={ROOT}/configs/digits.py:asp'],
      f"config.sync.method='asp': is asynchronous, and {ONLY}",
    ),
  ],
)
def test_train_names_simulate_where_only_that_can_help(flags, line, refused):
  assert refused('train', *flags) == f'train: {line}'
