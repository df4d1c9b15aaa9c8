"""What is installed without the extra `train`: jax, optax, jaxtyping, numpy."""

import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tomllib

import selsync_jax

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']

# Imports modules where some packages cannot be found.
IMPORT = """
import importlib, json, sys

class Missing:
  def __init__(self, names):
    self.names = names

  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in self.names:
      raise ModuleNotFoundError(f'{name} is not installed')

missing, modules = json.load(sys.stdin)
sys.meta_path.insert(0, Missing(set(missing)))
for module in modules:
  importlib.import_module(module)
import selsync_jax
for name, module in selsync_jax._MODULES.items():
  if module.startswith('sync.'):
    getattr(selsync_jax, name)
"""


def names_of(requirements):
  """Distributions that are needed without an extra, normalized."""
  for requirement in requirements or []:
    if 'extra ==' not in requirement:
      name = re.match(r'[\w.-]+', requirement)[0]
      yield re.sub('[-_.]+', '-', name).lower()


def with_dependencies(names):
  """Distributions, with all that pip installs along with them."""
  found, queue = set(), list(names)
  while queue:
    if (name := queue.pop()) not in found:
      found.add(name)
      try:
        queue += names_of(importlib.metadata.requires(name))
      except importlib.metadata.PackageNotFoundError:
        continue  # Of another platform.
  return found


def test_the_core_imports_with_its_four_dependencies_alone():
  core = set(names_of(PROJECT['dependencies']))
  assert core == {'jax', 'optax', 'jaxtyping', 'numpy'}
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
  done = subprocess.run(
    [sys.executable, '-c', IMPORT],
    cwd=ROOT,
    input=json.dumps([missing, modules]),
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )
  assert done.returncode == 0, done.stderr


def test_type_checkers_see_the_names_that_are_imported_on_first_use():
  source = pathlib.Path(selsync_jax.__file__).read_text()
  line = r'^  from selsync_jax\.(\S+) import (\w+) as \2$'
  declared = re.findall(line, source, re.M)
  assert {name: module for module, name in declared} == selsync_jax._MODULES
  assert selsync_jax._MODULES.keys() <= set(dir(selsync_jax))


def test_the_version_and_the_types_are_part_of_the_package():
  assert re.fullmatch(r'\d+\.\d+\.\d+', selsync_jax.__version__)
  assert (pathlib.Path(selsync_jax.__file__).parent / 'py.typed').exists()
