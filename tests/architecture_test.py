"""The plan of the house: which room may know which."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = 'selsync_jax'

# From the top down. A room imports only what stands below it; rooms on one
# line do not know each other.
FLOORS = [
  {'comparison', 'delta', 'plan'},
  {'trainer', 'launch', 'report', 'trials', 'probe'},
  {'job', 'progress', 'profiling', 'ledger', 'elastic'},
  {'plots', 'page', 'facts', 'writers'},
  {'histogram', 'checkpoint', 'interrupts', 'runs', 'canvas', 'threshold'},
  {'workers', 'pipeline'},
  {'command', 'records', 'workdir'},
  {'injection', 'streaming'},
  {'reading', 'network'},
  {'cluster', 'replicas', 'partition', 'tasks', 'models', 'strategies'},
  {'channel', 'relay', 'datasets', 'optimizers'},
  {'augment'},
  {'config', 'selsync', 'draws'},
]
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
CORE = {'selsync', 'strategies', 'optimizers', 'config'}


def room_of(path):
  return path.relative_to(ROOT / PACKAGE).with_suffix('').parts[0]


def imports(path):
  """Dotted names that a file imports anywhere in it."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f'{path}: a relative import'
      for alias in node.names:
        yield f'{node.module}.{alias.name}'


FILES = sorted((ROOT / PACKAGE).rglob('*.py'))


@pytest.mark.parametrize(
  'path', FILES, ids=lambda p: str(p.relative_to(ROOT / PACKAGE))
)
def test_imports_point_downwards(path):
  room = room_of(path)
  if room == '__init__':
    return
  assert room in FLOOR, f'{room} has no place in the plan of the house'
  for name in imports(path):
    top, *rest = name.split('.')
    assert top not in ('train', 'compare', 'configs', 'tests', 'benchmarks')
    if top == PACKAGE and rest and rest[0] != room:
      assert FLOOR[rest[0]] > FLOOR[room], f'{room} imports {rest[0]}'


@pytest.mark.parametrize('path', FILES, ids=lambda p: p.name)
def test_the_core_needs_only_jax_and_optax(path):
  if room_of(path) in CORE | {'__init__'}:
    light = {'jax', 'optax', 'jaxtyping', PACKAGE}
    standard = {'collections', 'contextlib', 'inspect', 'math', 'typing'}
    standard |= {'operator'}
    assert {n.split('.')[0] for n in imports(path)} <= light | standard


@pytest.mark.parametrize(
  'room, known',
  [
    ('models', {'config'}),
    ('strategies', {'config', 'optimizers', 'selsync'}),
  ],
)
def test_models_know_no_workers_and_strategies_no_models(room, known):
  for path in FILES:
    if room_of(path) == room:
      names = set(imports(path))
      ours = {n.split('.')[1] for n in names if n.startswith(PACKAGE)}
      assert ours <= known | {room}
      assert room != 'models' or 'jax.lax' not in names, 'collectives?'


def test_no_file_is_two_rooms():
  long = {
    str(path): lines
    for path in [*FILES, *ROOT.glob('*.py'), *ROOT.glob('configs/*.py')]
    if (lines := len(path.read_text().splitlines())) > 400
  }
  assert not long
