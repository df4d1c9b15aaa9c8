"""`selsync tune`: its trials, its output, and its refusals."""

import contextlib
import io
import json
import pathlib
import re
import shutil
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

from selsync_jax.commands import config_file, pool, tune
from selsync_jax.commands.candidates import Candidates
from selsync_jax.config import ConfigError, RunError
from selsync_jax.methods import Context
from selsync_jax.runs import history, records, workdir
from selsync_jax.sync import network
from selsync_jax.sync.traffic import Collective
from selsync_jax.training.train import train_and_evaluate
from tests.support import live_runs

FLAGS = [
  '--config=hyperplane',
  '--config.data.dimensions=8',
  '--config.data.backend=numpy',
  '--config.mapper=vmap',
  '--config.workers=2',
  '--config.steps=8',
  '--config.eval.every_epochs=0.0625',  # Every second step.
  '--config.checkpoint.every=1000',
  '--config.log.to=()',
  '--methods=local_sgd,diloco',
  '--step=5ms',
  '--trials=2',
  '--seeds=1',
  '--finalists=1',
]


def train_here(trial, is_enough=None):
  """Trains in this process, always to the end."""
  del is_enough
  try:
    train_and_evaluate(trial.config, trial.workdir)
  except RunError as error:
    if 'is not finite' not in str(error):
      raise


def run(out, *flags, train=train_here):
  """Runs the command in this process; returns what it printed."""
  output = io.StringIO()
  with contextlib.redirect_stdout(output):
    tune.main([*FLAGS, f'--out={out}', *flags], run=train)
  return output.getvalue()


@pytest.fixture(scope='module')
def tuned(tmp_path_factory):
  out = tmp_path_factory.mktemp('tune')
  return out, run(out)


def begun(out, printed):
  """The folders of the runs that started, in their order, without seeds."""
  found = re.findall(r'^\d+/\d+  (?:.* left  )?(\S+)$', printed, re.M)
  return [f'{pathlib.Path(path).relative_to(out).parent}' for path in found]


def test_the_first_trials_are_the_methods_with_the_fields_of_the_config(tuned):
  """The second trial of BSP is drawn, so BSP gets as many."""
  bsp, drawn, *methods = begun(*tuned)[:4]
  assert bsp == 'bsp-lr0.05' != drawn and drawn.startswith('bsp-')
  assert methods == ['local_sgd-period8-lr0.05', 'diloco-period50-lr0.05']


def test_a_search_announces_its_runs_and_names_its_phases(tuned):
  out, printed = tuned
  seconds = history.read(out / 'bsp-lr0.05' / 'seed0').outcome['seconds']
  line = (
    r'^at most 6 runs: 3 trials, 0 that choose among the best, 3 that judge'
  )
  (each,) = re.findall(rf'{line}; about 0:\d\d:\d\d .* (\S+) s$', printed, re.M)
  assert each == f'{seconds:.1f}'
  phases = re.findall(r'^phase (\d) of 4: ', printed, re.M)
  assert phases == ['1', '2', '3', '4']


def test_a_search_names_settings_and_methods_that_few_trials_miss(
  tuned, tmp_path
):
  out, printed = tuned
  of_methods = (
    'no settings of the methods are searched, because the first 2 trials'
  )
  assert f'--trials=2: {of_methods}' in printed and 'not tried' not in printed
  here = shutil.copytree(out, tmp_path / 'here')
  again = run(here, '--trials=1')
  (line,) = re.findall(rf'^--trials=1: {of_methods}.*', again, re.M)
  assert line.endswith('; not tried: diloco')


def test_the_recipe_is_a_config_that_trains_as_the_best_trial_did(
  tuned, tmp_path
):
  out, printed = tuned
  assert printed.splitlines()[-1] == f'{out}/recipe.py'
  config = config_file.load(f'{out}/recipe.py', ['--config.seed=1'])
  (again,) = (
    path
    for path in out.glob('*/seed1')
    if records.read_config(path) == json.loads(config.to_json())
  )
  train_and_evaluate(config, tmp_path)
  bits = [history.read(path).columns['loss'] for path in (again, tmp_path)]
  assert (bits[0] == bits[1]).all()


def test_the_verdict_uses_new_seeds_and_seconds_of_the_network(tuned):
  out, printed = tuned
  *_, verdict, path, _ = printed.splitlines()
  reference = history.read(out / 'bsp-lr0.05' / 'seed0')
  target = reference.outcome['validation_loss']
  assert verdict.startswith(f'seconds to validation loss {target:.4g}: ')
  assert ' by tuned BSP' in verdict and path == f'{out}/tune.html'
  text = pathlib.Path(path).read_text()
  for name in ('finals', 'trials'):
    assert f'<section id="{name}">' in text
  for shown in (text, ' '.join(printed.split())):
    assert 'With new seeds, on the validation split that chose' in shown


def test_the_value_of_a_trial_is_its_time_on_the_network(tuned):
  """Eight weights and a bias are 36 bytes."""
  out, _ = tuned
  reference = history.read(out / 'bsp-lr0.05' / 'seed0')
  losses = reference.columns['validation_loss']
  step = np.nonzero(losses <= losses[-1])[0][0] + 1
  links = network.Network(2, 1e9, 1e-3)
  seconds = 0.005 + links.seconds(Collective('all_reduce', 36))
  page = (out / 'tune.html').read_text()
  (shown,) = re.findall(r'\. bsp, lr 0.05</th><td><data value="(.*?)">', page)
  assert float(shown) == pytest.approx(step * seconds)


def test_the_same_command_repeats_nothing(tuned):
  out, printed = tuned
  again = run(out, train=pytest.fail)
  assert again.splitlines()[-3:] == printed.splitlines()[-3:]


def test_a_step_of_another_length_is_refused(tuned):
  out, _ = tuned
  with pytest.raises(
    ConfigError, match=f'^--step=6ms: {out}/compute.json has 5'
  ):
    run(out, '--step=6ms')


def test_a_second_process_of_a_search_is_refused(tuned):
  out, _ = tuned
  busy = pytest.raises(ConfigError, match=f'^--out={out}: another process')
  with workdir.claimed(out, '--out'), busy:
    run(out, train=pytest.fail)


def test_a_search_of_an_earlier_version_is_refused(tmp_path):
  (tmp_path / 'tune.db').touch()
  line = f'^--out={tmp_path}: holds a search of an earlier version, tune.db; '
  with pytest.raises(ConfigError, match=f'{line}choose another --out$'):
    run(tmp_path, train=pytest.fail)


@pytest.mark.parametrize(
  'reason, stops',
  [('config.sync: trigger', False), ('config.data.name: no files', True)],
)
def test_a_refused_run_stops_the_search_unless_its_choices_are_the_reason(
  reason, stops, tuned, tmp_path
):
  out, _ = tuned
  here = shutil.copytree(out, tmp_path / 'here')
  folder = here / 'local_sgd-period8-lr0.05' / 'seed0'
  shutil.rmtree(folder)

  def train(trial, is_enough=None):
    if trial.workdir != folder:
      return train_here(trial)
    raise pool.TrialFailed(trial, f'train: {reason}', ConfigError.code)

  with pytest.raises(pool.TrialFailed) if stops else contextlib.nullcontext():
    run(here, train=train)


def test_a_trial_that_reached_the_target_is_stopped_and_never_resumed(
  tuned, tmp_path
):
  out, _ = tuned
  here = shutil.copytree(out, tmp_path / 'here')
  shutil.rmtree(missing := here / 'local_sgd-period8-lr0.05' / 'seed0')
  (here / 'diloco-period50-lr0.05' / 'seed0' / 'summary.json').unlink()
  trained = []

  def train(trial, is_enough=None):
    train_here(trial)
    if trial.seed == 0:
      trained.append(trial.workdir)
      assert is_enough()

  run(here, '--target=1e9', train=train)  # A loss that every run reaches.
  assert trained == [missing]


@pytest.mark.slow
def test_the_best_score_within_a_budget(tmp_path):
  printed = run(tmp_path, '--bytes=100B')
  *_, verdict, _, _ = printed.splitlines()
  assert verdict.startswith('validation loss within 100 B per worker: ')
  text = (tmp_path / 'tune.html').read_text()
  assert 'above tuned BSP, %' in text
  for row in ('recipe: ', 'tuned BSP: bsp, lr ', 'config: ', '1. '):
    assert f'<th scope="row">{row}' in text


@pytest.mark.slow
def test_the_recipe_is_the_same_config_from_any_folder(tmp_path, monkeypatch):
  """A config in the working directory may have the name of one of ours."""
  own = tmp_path / 'configs' / 'hyperplane.py'
  own.parent.mkdir()
  own.write_text(
    'from selsync_jax.configs import hyperplane\n\n\n'
    "def get_config(method='selsync'):\n"
    '  config = hyperplane.get_config(method)\n'
    '  config.workers = 3\n  return config\n'
  )
  monkeypatch.chdir(tmp_path)
  candidates = Candidates('hyperplane', [], tmp_path / 'out')
  (trial,) = candidates.trials('local_sgd', {}, 1, 0)
  recipe = tmp_path / 'recipe.py'
  recipe.write_text(candidates.recipe(trial, 'the best'))
  monkeypatch.chdir('/')
  assert config_file.load(str(recipe), []) == trial.config
  (trial,) = candidates.trials('local_sgd', {}, 1, 1)  # Our own config.
  assert "load('hyperplane:local_sgd', " in candidates.recipe(trial, 'the best')


def test_the_recipe_is_bsp_if_that_is_best(tmp_path):
  slow = '--methods=local_sgd+optimizer.learning_rate=1e-9'
  printed = run(tmp_path, slow, '--trials=1', '--bytes=1MB')
  assert ' by bsp, lr 0.05; ' in printed.splitlines()[-3]
  found = config_file.load(f'{tmp_path}/recipe.py', [])
  assert found.sync.method == 'bsp'


@pytest.mark.slow
def test_the_recipe_is_bsp_if_nothing_else_reaches_the_target(tmp_path):
  slow = '--methods=local_sgd+optimizer.learning_rate=1e-9'
  printed = run(tmp_path, slow, '--trials=1', '--target=0.6')
  *_, verdict, path, _ = printed.splitlines()
  assert ' by bsp, lr 0.05; ' in verdict
  assert ' by tuned BSP. One seed cannot rank methods. ' in verdict
  assert pathlib.Path(path).exists()


@pytest.mark.slow
def test_other_seeds_choose_among_the_best_trials(tuned, tmp_path):
  """With seed 2, the best trial of all diverges."""
  out, _ = tuned
  here = shutil.copytree(out, tmp_path / 'here')
  config = config_file.load(f'{out}/recipe.py', ['--config.seed=0'])
  (best,) = (
    path.parent
    for path in here.glob('*/seed0')
    if records.read_config(path) == json.loads(config.to_json())
  )

  def train(trial, is_enough=None):
    if trial.workdir == best / 'seed2':
      trial = trial._replace(config=trial.config.copy_and_resolve_references())
      trial.config.optimizer.learning_rate = 1e20
    train_here(trial)

  run(here, '--finalists=2', train=train)
  assert (best / 'seed2').exists() and len([*here.glob('*/seed2')]) > 1
  chosen = config_file.load(f'{here}/recipe.py', ['--config.seed=0'])
  assert chosen.to_dict() != config.to_dict()


@pytest.mark.slow
def test_a_target_that_no_method_reaches_is_one_line(tmp_path):
  with pytest.raises(RunError) as error:
    run(tmp_path, '--target=-1', '--trials=1')
  assert str(error.value) == (
    f'{tmp_path}: no trial has a value of seconds to validation loss -1'
  )


def test_a_field_for_all_may_be_one_that_bsp_lacks(tmp_path):
  path = tmp_path / 'space.toml'
  path.write_text('[all]\n"sync.period" = [4, 8]\n"sync.wire" = ["own"]\n')
  options = tune.parse([*FLAGS, f'--space={path}', '--methods=local_sgd'])
  assert options.spaces['methods'].choices['local_sgd']['sync.period'] == (4, 8)
  for space in options.spaces.values():
    assert not any('sync.wire' in each for each in space.choices.values())


def test_bsp_may_have_the_optimizer_of_a_method(tmp_path):
  """BSP averages no parameters, so no field of such averages is chosen."""
  path = tmp_path / 'space.toml'
  path.write_text('[all]\n"sync.wire" = ["float32", "int8"]\n')
  adam = 'optimizer.name=adam+optimizer.momentum=None'
  options = tune.parse(
    [
      *(*FLAGS, f'--space={path}'),
      f'--methods=local_sgd,muloco,muloco+sync.averager=mean,noloco+{adam}',
    ]
  )
  found = options.spaces['bsp'].choices
  muon = f'muloco+{tune.GRADIENTS}'
  assert [*found] == ['bsp', muon, f'bsp+{adam}']
  rates = found[muon]['optimizer.learning_rate']
  assert (rates.low, rates.high) == (0.02 / 4, 0.02 * 4)
  shared = {'params': {'w': jnp.zeros(8)}, 'model_state': {}}
  for method, choices in found.items():
    assert not any(field.startswith('sync.') for field in choices)
    settings = options.candidates.settings(method, {})
    sends = settings.method(Context(8, 0)).sends(shared, 2)
    (step,) = [each for each in sends if each.at == 'step']
    assert (step.nbytes, step.rate) == (4 * 8, 1)


def test_a_section_of_another_method_is_refused(tmp_path, refused):
  path = tmp_path / 'space.toml'
  path.write_text('[gossip]\n"sync.period" = [1, 2]\n')
  assert refused('tune', *FLAGS, f'--space={path}') == (
    f'tune: --space={path}: [gossip] is not one of all, bsp, local_sgd, diloco'
  )


@pytest.mark.slow
def test_a_signal_ends_the_process_that_measures_a_step(tmp_path):
  flags = [flag for flag in FLAGS if not flag.startswith('--step=')]
  child = live_runs.start(
    [sys.executable, '-m', 'selsync_jax', 'tune', *flags, f'--out={tmp_path}']
  )
  while not (measures := [*_processes_of(child.pid, 'candidates')]):
    assert child.poll() is None, child.communicate()
    time.sleep(0.01)
  child.terminate()
  assert child.communicate(timeout=60)[0].endswith(
    'tune: stopped by a signal; the same command resumes the runs\n'
  )
  assert child.returncode == 75
  deadline = time.monotonic() + 10
  while measures and time.monotonic() < deadline:
    time.sleep(0.1)
    measures = [path for path in measures if path.exists()]
  assert not measures


def _processes_of(parent, word):
  """The folders in /proc of a process's children with a word in the command."""
  children = pathlib.Path(f'/proc/{parent}/task/{parent}/children')
  for pid in children.read_text().split():
    path = pathlib.Path('/proc', pid)
    with contextlib.suppress(OSError):
      if word in (path / 'cmdline').read_text():
        yield path


def test_a_config_with_an_impossible_own_method_is_refused_at_once(tmp_path):
  """The method is trained beside the recipe, when all trials have ended."""
  file = tmp_path / 'late.py'
  file.write_text(
    'from selsync_jax.configs import hyperplane\n\n\n'
    "def get_config(method='asp'):\n  return hyperplane.get_config(method)\n"
  )
  with pytest.raises(ConfigError, match=r'^asp: .* is asynchronous, and only'):
    tune.parse([*FLAGS[1:], f'--config={file}', f'--out={tmp_path}/out'])
