"""The runs of a comparison, and their names."""

import pathlib

import pytest

from selsync_jax.commands import compare as command
from selsync_jax.commands import trials
from selsync_jax.commands.flags import rates
from selsync_jax.config import ConfigError

ROOT = pathlib.Path(__file__).parents[2]
DIGITS = f'{ROOT}/configs/digits.py'


def test_every_method_gets_the_same_seeds_and_rates(tmp_path):
  grid = trials.list_trials(
    DIGITS,
    ['--config.seed=10'],
    ['selsync', 'bsp', 'fedavg'],
    tmp_path,
    sweeps={'sync.delta': ['0.05', '0.3']},
    learning_rates=rates('0.1,2x'),
    seeds=3,
  )
  grids = {}
  for trial in grid:
    grids.setdefault(trial.label, []).append((trial.learning_rate, trial.seed))
    assert trial.config.seed == trial.seed
    assert trial.config.optimizer.learning_rate == trial.learning_rate
  assert list(grids) == [
    'selsync, delta 0.05',
    'selsync, delta 0.3',
    'bsp',
    'fedavg, epochs 0.25, fraction 1',
  ]
  expected = [(rate, seed) for seed in (10, 11, 12) for rate in (0.1, 0.2)]
  assert all(grid == expected for grid in grids.values())
  assert len({trial.workdir for trial in grid}) == len(grid) == 24
  first = {trial.config.sync.method for trial in grid[: len(grid) // 3]}
  assert first == {'selsync', 'bsp', 'fedavg'}  # A whole seed comes first.


def test_a_multiple_is_relative_to_the_methods_own_rate(tmp_path):
  grid = trials.list_trials(
    DIGITS,
    [],
    ['bsp', 'muloco'],  # Muon's rate has another unit.
    tmp_path,
    learning_rates=rates('1x,0.5x'),
  )
  assert [t.learning_rate for t in grid] == [0.1, 0.05, 0.02, 0.01]


def test_a_field_of_a_method_that_is_set_again_has_its_last_value(tmp_path):
  grid = trials.list_trials(
    DIGITS,
    ['--config.sync.smoothing=0.5'],
    ['selsync+sync.delta=None+sync.smoothing=0.2'],
    tmp_path,
    sweeps={'sync.delta': ['0.1', '0.3']},
  )
  assert [trial.label for trial in grid] == [
    'selsync, delta 0.1, smoothing 0.2',
    'selsync, delta 0.3, smoothing 0.2',
  ]


def test_a_field_of_the_run_and_one_of_its_method_have_two_labels(tmp_path):
  assert labels(tmp_path, 'fedavg', '--sweep=epochs=4,8') == [
    'fedavg, epochs 0.25, fraction 1, config.epochs 4',
    'fedavg, epochs 0.25, fraction 1, config.epochs 8',
  ]


def test_any_field_can_be_swept_by_the_methods_that_have_it(tmp_path):
  sweeps = {'sync.delta': ['0.1', '1'], 'workers': ['2', '4']}
  methods = ['selsync', 'bsp']
  grid = trials.list_trials(DIGITS, [], methods, tmp_path, sweeps=sweeps)
  assert {
    t.label: (t.config.workers, t.config.sync.get('delta')) for t in grid
  } == {
    'selsync, delta 0.1, workers 2': (2, 0.1),
    'selsync, delta 0.1, workers 4': (4, 0.1),
    'selsync, delta 1, workers 2': (2, 1.0),
    'selsync, delta 1, workers 4': (4, 1.0),
    'bsp, workers 2': (2, None),
    'bsp, workers 4': (4, None),
  }


def labels(tmp_path, methods, *flags):
  line = [f'--config={DIGITS}', f'--methods={methods}', '--seeds=1', *flags]
  options = command.parse([*line, f'--out={tmp_path / "out"}'])
  folders = [trial.workdir.parent.name for trial in options.trials]
  assert len(set(folders)) == len(folders)
  return [trial.label for trial in options.trials]


def test_labels_tell_runs_apart(tmp_path):
  two = 'bsp+schedule.name=constant,bsp+schedule.name=cosine'
  assert labels(tmp_path, two) == [
    'bsp, schedule constant',
    'bsp, schedule cosine',
  ]
  own = 'bsp+model.name=vgg11+schedule.name=cosine+data.dir=/tmp'
  assert labels(tmp_path, own) == [
    'bsp, model vgg11, schedule cosine, dir /tmp'
  ]
  close = 'selsync+sync.quorum=0.5,selsync+sync.quorum=0.50000001'
  assert [label.split()[-1] for label in labels(tmp_path, close)] == [
    '0.5',
    '0.50000001',
  ]


@pytest.mark.parametrize(
  'methods, flags', [('bsp,bsp', []), ('bsp', ['--lrs=0.1,0.10'])]
)
def test_a_run_that_is_named_twice_is_refused(methods, flags, tmp_path):
  with pytest.raises(ConfigError, match=r'^bsp: two runs would write .*/seed0'):
    labels(tmp_path, methods, *flags)
