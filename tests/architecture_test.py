"""The plan of the house: which room may import which."""

import ast
import functools
import runpy

from tests.support.session import ROOT

PACKAGE = 'selsync_jax'

OUTSIDE = {'train', 'compare', 'configs', 'tests', 'benchmarks', 'stress'}
# From the top down. A room imports only itself and rooms below it.
ROOMS = [
  'commands',
  'simulate',
  'tune',
  'islands',
  'training',
  'report',
  'runs',
  'devices',
  'cluster',
  'methods',
  'data',
  'models',
  'sync',
  'optimizers',
  'fields',
  'array_names',
  'traced',
  'config',
  'own_code',
  'user_errors',
  'renamed',
]
CORE = {'__init__', 'methods', *ROOMS[ROOMS.index('sync') :]}
LIGHT = {'annotated_types', 'jax', 'jaxtyping', 'lazy_loader', 'numpy', 'optax'}
LIGHT |= {PACKAGE}
STANDARD = {'collections', 'contextlib', 'dataclasses', 'inspect', 'math'}
STANDARD |= {'re', 'enum', 'functools', 'types', 'importlib', 'warnings'}
STANDARD |= {'numbers', 'operator', 'typing', 'collections', 'os', 'pathlib'}
STANDARD |= {'sysconfig', 'tempfile', 'traceback', 'logging'}
STANDARD |= {'ast', 'copy', 'json', 'hashlib', 'linecache', 'sys', 'weakref'}
# Heavy libraries, parts of JAX that may change with any release, and the one
# room that imports each.
HOMES = {
  'tensorflow': 'data',
  'tensorflow_datasets': 'data',
  'grain': 'data',
  'matplotlib': 'report',
  'simpy': 'simulate',
  'pyarrow': 'islands',
  'cryptography': 'islands',
  'prometheus_client': 'islands',
  'jax.extend': 'traced',
  'jax._src': 'cluster',
}


def room_of(path):
  return path.relative_to(ROOT / PACKAGE).with_suffix('').parts[0]


@functools.cache
def nodes(path):
  """The syntax of a file."""
  return list(ast.walk(ast.parse(path.read_text())))


def imports(path):
  """Dotted names that a file imports anywhere in it."""
  for node in nodes(path):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f'{path}: a relative import'
      for alias in node.names:
        yield f'{node.module}.{alias.name}'


def attributes(path):
  """Every `name.attribute` in a file."""
  for node in nodes(path):
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      yield node


FILES = sorted((ROOT / PACKAGE).rglob('*.py'))


def test_imports_point_downwards():
  for path in FILES:
    room = room_of(path)
    for name in imports(path):
      top, *rest = name.split('.')
      assert top not in OUTSIDE
      if top == PACKAGE and rest and not room.startswith('__'):
        assert ROOMS.index(rest[0]) >= ROOMS.index(room), f'{path}: {name}'


def test_no_file_reaches_into_anothers_private_names():
  for path in FILES:
    for name in imports(path):
      if name.startswith(PACKAGE):
        private = [p for p in name.split('.') if p.startswith('_')]
        assert private in ([], ['__main__']), f'{path}: {name}'
    modules = {name.split('.')[-1] for name in imports(path) if '.' in name}
    for node in attributes(path):
      private = node.attr.startswith('_') and not node.attr.endswith('_')
      assert not (private and node.value.id in modules), (
        f'{path}:{node.lineno}: {node.attr}'
      )


def test_tests_and_benchmarks_share_tests_support_alone():
  folders = {'tests', 'benchmarks', 'stress'}
  for folder in folders:
    for path in (ROOT / folder).rglob('*.py'):
      own = 'tests.support' if folder == 'tests' else folder
      for name in imports(path):
        if name.split('.')[0] in folders:
          assert name.startswith((f'{own}.', 'tests.support.')), path


def test_the_core_needs_only_jax_and_optax():
  for path in FILES:
    if room_of(path) in CORE:
      names = {name.split('.')[0] for name in imports(path)}
      assert names <= LIGHT | STANDARD


def test_heavy_and_changing_libraries_have_one_home():
  for path in FILES:
    for name in imports(path):
      for library, home in HOMES.items():
        is_of_it = f'{name}.'.startswith(f'{library}.')
        assert not is_of_it or home == room_of(path), f'{path}: {name}'


def test_models_know_no_workers_and_methods_no_models():
  for path in FILES:
    ours = {n.split('.')[1] for n in imports(path) if n.startswith(PACKAGE)}
    if room_of(path) == 'models':
      assert ours <= {'array_names', 'config', 'models'}
    if room_of(path) == 'methods':
      assert ours <= {'config', 'optimizers', 'sync', 'methods'}


def test_the_package_has_the_rooms_of_the_plan():
  """Python's own markers (`__init__`, `__main__`, `py.typed`) apart."""
  paths = list((ROOT / PACKAGE).iterdir())
  entries = {path.stem for path in paths if not path.is_symlink()}
  assert {e for e in entries if not e.startswith(('__', 'py'))} == set(ROOMS)
  (link,) = (path for path in paths if path.is_symlink())
  assert link.resolve() == ROOT / 'configs'


def test_the_picture_in_the_docs_is_what_the_imports_draw():
  script = runpy.run_path(str(ROOT / 'docs' / 'architecture.py'))
  text = script['PAGE'].read_text()
  assert script['update'](text) == text, 'run python docs/architecture.py'


def test_the_table_of_methods_in_the_docs_is_what_the_registry_says():
  script = runpy.run_path(str(ROOT / 'docs' / 'methods.py'))
  for name, tables in script['tables']().items():
    text = (ROOT / 'docs' / name).read_text()
    assert script['update'](text, tables) == text, 'run python docs/methods.py'


def test_the_picture_keeps_only_arrows_that_follow_from_no_others():
  reduce = runpy.run_path(str(ROOT / 'docs' / 'architecture.py'))['reduce']
  graph = {'a': {'b', 'c', 'd'}, 'b': {'c'}, 'c': {'d'}, 'd': set()}
  assert reduce(graph) == {'a': {'b'}, 'b': {'c'}, 'c': {'d'}, 'd': set()}
