"""Runs the commands of README and docs as they stand there."""

import pathlib
import re
import runpy
import shutil
import sys
from unittest import mock

import pytest

from selsync_jax.commands import (
  compare,
  evaluate,
  export,
  plan,
  report,
  simulate,
  train,
  tune,
)
from selsync_jax.report import run_page
from selsync_jax.simulate import run as simulation
from selsync_jax.training.train import train_and_evaluate
from tests.support.pages import commands, PAGES, ROOT

FEW_STEPS = ('--config.steps=6', '--config.schedule.warmup_epochs=0.0')


def run_train(arguments, data_dir):
  """Does the work of `train`, on the devices of this process, in a few steps.

  It skips the report at the end, which would take most of the time.
  """
  fields = [*FEW_STEPS, f'--config.data.dir={data_dir}']
  options = train.parse([*arguments, *fields])
  train_and_evaluate(
    options.settings,
    options.workdir,
    restart=options.restart,
    profile=options.profile,
  )


def run_launch(arguments, data_dir):
  """One process does the work of all; processes_test.py launches several."""
  processes, dashes, program, name, *given = arguments
  assert re.fullmatch(r'--processes=\d', processes) and dashes == '--'
  assert (program, name) == ('selsync', 'train')
  run_train(given, data_dir)


def run_main(main, *short):
  """Runs a command by its main, with flags that make it short."""

  def run(arguments, data_dir):
    main([*arguments, *(flag.format(data_dir=data_dir) for flag in short)])

  return run


def run_weights(main):
  """Runs a command on a run, which is trained if it does not exist."""

  def run(arguments, data_dir):
    workdir, *flags = arguments
    if not pathlib.Path(workdir).exists():
      run_train([f'--workdir={workdir}'], data_dir)
    for out in re.findall('--out=(.*)', '\n'.join(flags)):
      pathlib.Path(out).unlink(missing_ok=True)  # Of an earlier command.
    main(arguments)

  return run


def run_pictures(arguments, data_dir):
  workdir = pathlib.Path(arguments[0])
  run_page.write([workdir], workdir)
  script = runpy.run_path('docs/pictures.py')
  with mock.patch.object(sys, 'argv', ['', *arguments]):
    script['main']()


def run_script(path):
  """A script of the docs, without arguments."""

  def run(arguments, data_dir):
    assert not arguments
    runpy.run_path(path)['main']()

  return run


def run_compare(arguments, data_dir):
  """The whole command with one seed and one rate; it trains in this process."""

  def run(trial):
    execute = {'train': train_and_evaluate, 'simulate': simulation.simulate}
    execute[trial.command](trial.config, trial.workdir)

  short = ('--seeds=1', '--lrs=0.1', '--config.mapper=vmap', *FEW_STEPS)
  fields = [*short, f'--config.data.dir={data_dir}']
  compare.main([*arguments, *fields], run)


def run_tune(arguments, data_dir):
  """A trial of each search; it trains in this process."""

  def run(trial, is_enough=None):
    train_and_evaluate(trial.config, trial.workdir)

  short = ('--trials=1', '--seeds=1', '--step=5ms', '--config.mapper=vmap')
  short += ('--target=0.01',)  # Few steps surely reach it.
  short += ('--jobs=1',)  # Orbax expects one run per process.
  fields = [*short, *FEW_STEPS, f'--config.data.dir={data_dir}']
  tune.main([*arguments, *fields], run)


BRIEFLY = ('--steps=5', '--config.data.dir={data_dir}')
RUN_COMMAND = {
  ('train.py',): run_train,
  ('compare.py',): run_compare,
  ('docs/pictures.py',): run_pictures,
  ('docs/architecture.py',): run_script('docs/architecture.py'),
  ('docs/methods.py',): run_script('docs/methods.py'),
  ('-m', 'selsync_jax', 'launch'): run_launch,
  ('-m', 'selsync_jax', 'report'): run_main(report.main),
  ('-m', 'selsync_jax', 'export'): run_weights(export.main),
  ('-m', 'selsync_jax', 'evaluate'): run_weights(evaluate.main),
  ('-m', 'selsync_jax', 'simulate'): run_main(
    simulate.main, '--noreport', '--config.data.dir={data_dir}', *FEW_STEPS
  ),
  ('-m', 'selsync_jax', 'tune'): run_tune,
  ('-m', 'selsync_jax', 'plan'): run_main(plan.main, *BRIEFLY),
}


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
  """A copy of the repository, for commands to write into."""
  folder = tmp_path_factory.mktemp('clone') / 'selsync_jax'
  ignored = shutil.ignore_patterns('.*', 'runs', '__pycache__', '*.egg-info')
  shutil.copytree(ROOT, folder, ignore=ignored)
  return folder


@pytest.fixture(scope='module')
def ran():
  """Commands that have already run, because pages repeat each other."""
  return set()


PARSE = {('train.py',): train.parse, ('compare.py',): compare.parse}


def split(command):
  """The words that name a command of Python, and its arguments."""
  tool, *arguments = command
  if tool == 'selsync':
    name, *arguments = arguments
    scripts = {'train': ('train.py',), 'compare': ('compare.py',)}
    return scripts.get(name, ('-m', 'selsync_jax', name)), arguments
  assert tool == '.venv/bin/python', tool
  words = 3 if arguments[0] == '-m' else 1
  return tuple(arguments[:words]), arguments[words:]


def python_commands(page):
  for command in commands(page):
    # install_test.py runs the commands that need no checkout, and tests/islands
    # the commands of islands.
    others = 'git', 'cd', 'make', 'pip', '.venv/bin/pip', 'python'
    of_islands = re.search('island|INVITATION', ' '.join(command))
    if command[0] not in others and not of_islands:
      yield split(command)


@pytest.mark.parametrize('page', PAGES)
def test_every_command_of_a_page_is_understood(page, monkeypatch, tmp_path):
  monkeypatch.chdir(ROOT)
  for name, arguments in python_commands(page):
    assert name in RUN_COMMAND
    if name in PARSE:
      out = [f'--out={tmp_path}'] if name == ('compare.py',) else []
      PARSE[name]([*arguments, *out])


def run_once(name, arguments, data_dir, ran):
  """Runs a command that this clone has not run yet."""
  if (name, *arguments) not in ran:
    RUN_COMMAND[name](arguments, data_dir)
    ran.add((name, *arguments))


@pytest.mark.slow
@pytest.mark.usefixtures('short_text')
@pytest.mark.parametrize('page', PAGES)
def test_every_command_of_a_page_runs(page, clone, data_dir, ran, monkeypatch):
  monkeypatch.chdir(clone)
  first = ('train.py',), []  # The README starts with it.
  for name, arguments in [first, *python_commands(page)]:
    run_once(name, arguments, data_dir, ran)
