"""Pip's installation, with the extra `train` and without it."""

import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import sys
import sysconfig
import tomllib
import venv

from packaging.requirements import Requirement
import pytest
import yaml

import selsync_jax
from tests.support import live_runs
from tests.support.session import ROOT

PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']

# The entries of the package's stub: module and name.
OFFERED = re.findall(
  r'^from \.(\S+) import (\w+) as \2$',
  (ROOT / 'selsync_jax' / '__init__.pyi').read_text(),
  re.M,
)

# Imports modules where some packages cannot be found.
IMPORT = """
import importlib, json, sys

class Missing:
  def __init__(self, names):
    self.names = names

  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in self.names:
      raise ModuleNotFoundError(f'{name} is not installed')

missing, modules, names, refused = json.load(sys.stdin)
sys.meta_path.insert(0, Missing(set(missing)))
for module in modules:
  importlib.import_module(module)
import selsync_jax
for name in names:
  getattr(selsync_jax, name)
for name in refused:
  try:
    getattr(selsync_jax, name)
  except ModuleNotFoundError as error:
    print(error)
"""


def names_of(requirements):
  """Distributions that are needed without an extra, normalized."""
  for requirement in requirements or []:
    if 'extra ==' not in requirement:
      name = re.match(r'[\w.-]+', requirement)[0]
      yield re.sub('[-_.]+', '-', name).lower()


def with_dependencies(names):
  """Distributions, with everything that pip installs along with them."""
  found, queue = set(), list(names)
  while queue:
    if (name := queue.pop()) not in found:
      found.add(name)
      try:
        queue += names_of(importlib.metadata.requires(name))
      except importlib.metadata.PackageNotFoundError:
        continue  # For another platform.
  return found


def test_the_core_imports_without_an_extra_and_the_rest_names_it():
  core = set(names_of(PROJECT['dependencies']))
  small = {'annotated-types', 'lazy-loader', 'msgspec'}  # Nothing comes along.
  assert core == {'jax', 'optax', 'jaxtyping', 'numpy'} | small
  installed = with_dependencies(core)
  missing = [
    package
    for package, owners in importlib.metadata.packages_distributions().items()
    if not installed & set(names_of(owners))
    if package != 'selsync_jax'
  ]
  heavy = {'flax', 'ml_collections', 'orbax', 'tensorflow', 'matplotlib'}
  assert heavy <= set(missing)
  modules = [
    '.'.join(path.relative_to(ROOT).with_suffix('').parts)
    for room in ('sync', 'methods')
    for path in (ROOT / 'selsync_jax' / room).glob('*.py')
  ]
  offered = [name for module, name in OFFERED if module.startswith('sync')]
  done = live_runs.run(
    sys.executable,
    '-c',
    IMPORT,
    input=json.dumps([missing, modules, offered, ['Recorder', 'load']]),
  )
  assert done.returncode == 0, done.stderr
  said = done.stdout.splitlines()
  assert [line.partition(':')[0] for line in said] == [
    'selsync_jax.Recorder',
    'selsync_jax.load',
  ]
  for line in said:
    assert line.endswith("; pip install 'selsync-jax[train]'")


def test_the_versions_that_are_installed_are_said_to_be_tested():
  """If not: fix the failures with the newer version, then raise its bound."""
  tested = PROJECT['optional-dependencies']['tested']
  for requirement in map(Requirement, tested):
    version = importlib.metadata.version(requirement.name)
    assert version in requirement.specifier, requirement.name
  major, minor = selsync_jax._TESTED
  assert f'jax<{major}.{minor + 1}' in tested


def test_a_jax_that_is_newer_than_the_tests_gets_one_line_of_warning(tmp_path):
  (folder := tmp_path / 'jax-0.99.1.dist-info').mkdir()
  (folder / 'METADATA').write_text('Name: jax\nVersion: 0.99.1\n')
  path = os.pathsep.join([str(tmp_path), os.environ['PYTHONPATH']])
  done = live_runs.run(
    *(sys.executable, '-m', 'selsync_jax', 'plan', '--help'),
    env=os.environ | {'PYTHONPATH': path},
  )
  (line,) = done.stderr.splitlines()
  assert line.startswith('jax 0.99.1 is newer than ')
  assert line.endswith(
    f"if a run fails: pip install 'jax<0.{selsync_jax._TESTED[1] + 1}'"
  )
  assert done.returncode == 0 and done.stdout


def test_the_pythons_of_ci_have_classifiers():
  """CI runs the tests on the oldest and on the newest Python."""
  prefix = 'Programming Language :: Python :: '
  listed = [c.removeprefix(prefix) for c in PROJECT['classifiers']]
  assert '{}.{}'.format(*sys.version_info) in listed
  first = next(each for each in listed if each.startswith('3.'))
  assert PROJECT['requires-python'] == f'>={first}'


def test_the_stub_has_the_names_that_are_imported_on_first_use():
  assert {name for _, name in OFFERED} <= set(dir(selsync_jax))
  assert len(OFFERED) > 40


def test_the_version_and_the_types_are_part_of_the_package():
  assert re.fullmatch(r'\d+\.\d+\.\d+', selsync_jax.__version__)
  assert (pathlib.Path(selsync_jax.__file__).parent / 'py.typed').exists()


def test_citation_and_changelog_are_of_this_version():
  citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
  assert citation['version'] == selsync_jax.__version__
  changes = (ROOT / 'CHANGELOG.md').read_text()
  heading = r'^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$'
  newest = re.search(heading, changes, re.M)
  assert newest[1] == selsync_jax.__version__


def test_the_image_installs_existing_extras_and_starts_the_command():
  text = (ROOT / 'Dockerfile').read_text()
  lines = dict(re.findall(r'^([A-Z]+) (.*)$', text, re.M))
  assert lines['FROM'] == 'python:3.12-slim'
  (command,) = json.loads(lines['ENTRYPOINT'])
  assert command in PROJECT['scripts']
  for extras in re.findall(r'EXTRAS=([\w,]+)', text):
    assert set(extras.split(',')) <= PROJECT['optional-dependencies'].keys()


def run(*command, path='', cwd=None):
  """The output of a command that does not see this checkout."""
  env = os.environ | {'PATH': f'{path}{os.environ["PATH"]}'}
  del env['PYTHONPATH']
  done = live_runs.run(*command, cwd=cwd, env=env)
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def install(folder):
  """The programs of a new environment with the wheel and the extra `train`.

  Dependencies come from this environment; pip finds them sufficient.
  """
  source = folder / 'source'  # Setuptools writes into it.
  for name in ('selsync_jax', 'configs'):
    shutil.copytree(ROOT / name, source / name, symlinks=True)
  for name in ('pyproject.toml', 'README.md', 'LICENSE'):
    shutil.copy(ROOT / name, source)
  # Pip uses deprecated functions.
  pip = ('env', '-u', 'PYTHONWARNINGS', sys.executable, '-m', 'pip')
  built = ('--no-deps', '--no-build-isolation', f'--wheel-dir={folder}')
  run(*pip, 'wheel', *built, source)
  shutil.rmtree(source)
  (wheel,) = folder.glob('*.whl')
  links = folder / 'dependencies'
  links.mkdir()
  for path in pathlib.Path(sysconfig.get_path('purelib')).iterdir():
    if 'selsync_jax' not in path.name:
      (links / path.name).symlink_to(path)
  venv.create(folder / 'venv')
  (packages,) = (folder / 'venv').glob('lib/python*/site-packages')
  (packages / 'dependencies.pth').write_text(f'{links}\n')
  programs = folder / 'venv' / 'bin'
  into = (f'--python={programs}/python', 'install', '--no-index')
  run(*pip, *into, f'{wheel}[train]')
  return programs


@pytest.mark.slow
def test_four_commands_of_the_readme_train_and_reload_a_model(
  tmp_path, data_dir
):
  del data_dir  # The command finds it by the environment.
  readme = (ROOT / 'README.md').read_text()
  block = re.search(r"^```sh\n(pip install '\..*?)^```", readme, re.S | re.M)
  first, *commands = block[1].splitlines()
  assert first == "pip install '.[train]'"
  assert len(commands) == 3
  programs = install(tmp_path)
  folder = tmp_path / 'empty'
  folder.mkdir()
  where = {'cwd': folder, 'path': f'{programs}:'}
  location = 'import selsync_jax as ss; print(ss.__file__)'
  assert str(programs.parent) in run('python', '-c', location, **where)
  trained, exported, loaded = (run('sh', '-c', c, **where) for c in commands)
  assert 'test accuracy of the consensus' in trained
  assert (folder / 'runs' / 'digits-selsync' / 'report.html').exists()
  assert (folder / exported.partition(':')[0]).stat().st_size > 4 * 151_306
  assert loaded.startswith('ConvNet(')
