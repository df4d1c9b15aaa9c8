"""Digests that identify the source of registered objects.

The code of a run's model, data set, task and method identifies the run: after
an edit it is another run. Every top-level statement that a registered object
uses, directly or indirectly, has a digest, without comments and docstrings. It
may be in the object's module or in an imported module, except in libraries. If
one of two methods in a file is edited, `compare` trains only that method again.

Only source code has digests. Objects in memory also depend on chance, time and
caches. The traced step lacks the code that runs on the host, and differs with
the number of workers and the length of a run.
"""

import ast
from collections.abc import Iterator
import copy
import functools
import hashlib
from importlib import machinery, util
import linecache
import sys
import types
from typing import NamedTuple

from selsync_jax import user_errors

PYTHON = f'{sys.version_info.major}.{sys.version_info.minor}'
"""The Python version that parsed the source; others may unparse differently."""

_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_LONGEST = 60  # Characters in the label of a statement without a name.


class Place(NamedTuple):
  """A line of a user's file."""

  module: str
  file: str
  line: int


class _Statement(NamedTuple):
  """A statement at the top of a module."""

  lines: range
  text: str
  names: frozenset[str]  # Defined or changed names, or else the text.
  mentions: frozenset[str]


class _Module(NamedTuple):
  statements: list[_Statement]
  imports: list[tuple[int, str]]  # Leading dots, and a possible module name.


def caller() -> Place | None:
  """Returns the current line of a user's file, if such a file is running.

  In a module, that is a top-level line. In a script, it is the current line of
  the innermost function.
  """
  frame = sys._getframe(1)
  while frame and not user_errors.is_own(frame.f_code.co_filename):
    frame = frame.f_back
  places = []
  while frame and user_errors.is_own(frame.f_code.co_filename):
    module, code = frame.f_globals.get('__name__', ''), frame.f_code
    place = Place(module, code.co_filename, frame.f_lineno)
    if code.co_name == '<module>' and module != '__main__':
      return place
    places.append(place)
    frame = frame.f_back
  return places[0] if places else None


def digests(place: Place | None) -> list[str]:
  """Returns `NAME DIGEST` of every statement that a line uses, sorted."""
  if place is None:
    return []
  here = place.module, place.file
  todo = [
    (here, name)
    for statement in _read(place.file).statements
    if place.line in statement.lines
    for name in statement.names
  ]
  found: dict[tuple[str, str], str] = {}
  while todo:
    here, name = todo.pop()
    _, file = here
    if (file, name) in found:
      continue
    own = [s for s in _read(file).statements if name in s.names]
    if not own:
      continue
    text = '\n'.join(statement.text for statement in own)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    found[file, name] = f'{name} {digest}'
    mentioned = frozenset().union(*(s.mentions for s in own))
    todo += [(m, n) for m in (here, *_imported(*here)) for n in mentioned]
  return sorted(found.values())


def names_of_changes(old: list[str], new: list[str]) -> list[str]:
  """Returns the names that differ between two lists of digests."""
  return sorted({line.rpartition(' ')[0] for line in {*old} ^ {*new}})


def _read(file: str) -> _Module:
  linecache.checkcache(file)
  return _parse(''.join(linecache.getlines(file)))  # Also a notebook's cell.


@functools.lru_cache(256)
def _parse(source: str) -> _Module:
  try:
    tree = ast.parse(source)
  except SyntaxError:  # A cell with IPython commands.
    return _Module([], [])
  imports = [
    (getattr(node, 'level', 0), name)
    for node in ast.walk(tree)
    for name in _modules(node)
  ]
  for node in ast.walk(tree):
    if isinstance(node, _DEFINITIONS) and ast.get_docstring(node) is not None:
      node.body = node.body[1:] or [ast.Pass()]
  ast.fix_missing_locations(tree)
  libraries = {
    name
    for node in tree.body
    if isinstance(node, ast.Import | ast.ImportFrom)
    for name in _names(node)
  }
  statements = [
    _statement(node, libraries) for each in tree.body for node in _split(each)
  ]
  return _Module(statements, imports)


def _modules(node: ast.AST) -> Iterator[str]:
  """Yields the names in an import that may be modules."""
  if isinstance(node, ast.Import):
    yield from (alias.name for alias in node.names)
  elif isinstance(node, ast.ImportFrom):
    base = node.module or ''
    yield base
    yield from (f'{base}.{alias.name}'.strip('.') for alias in node.names)


def _split(node: ast.stmt) -> Iterator[ast.stmt]:
  """Yields an import of several names as imports of one."""
  if not isinstance(node, ast.Import | ast.ImportFrom):
    yield node
    return
  for alias in node.names:
    one = copy.copy(node)
    one.names = [alias]
    yield one


def _statement(node: ast.stmt, imported: set[str]) -> _Statement:
  decorators = getattr(node, 'decorator_list', [])
  first = min([node.lineno, *(each.lineno for each in decorators)])
  text = ast.unparse(node)
  code = compile(
    ast.Module([node], []), '', 'exec', ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True
  )
  names = set(_names(node))
  match node:
    case ast.Expr(ast.Call(ast.Attribute(value=ast.Name(id=name)))):
      names |= {name} - imported  # A method call may change the object.
  return _Statement(
    range(first, (node.end_lineno or first) + 1),
    text,
    frozenset(names or {text.partition('\n')[0][:_LONGEST]}),
    frozenset(_mentions(code)),
  )


def _mentions(code: types.CodeType) -> Iterator[str]:
  """Yields the names that code looks up, but not its own local variables."""
  for name in code.co_names:
    yield from name.split('.')
  for each in code.co_consts:
    if isinstance(each, types.CodeType):
      yield from _mentions(each)


def _names(node: ast.stmt) -> Iterator[str]:
  """Yields the names of the objects that a statement defines or changes."""
  if isinstance(node, _DEFINITIONS):
    yield node.name
    return
  for each in ast.walk(node):
    match each:
      case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
        yield name
      case ast.alias():
        yield (each.asname or each.name).partition('.')[0]
      case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
        yield name
      case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
        while isinstance(each, ast.Attribute | ast.Subscript):
          each = each.value
        if isinstance(each, ast.Name):
          yield each.id


def _imported(module: str, file: str) -> Iterator[tuple[str, str]]:
  """Yields the modules that a file imports anywhere, with their files.

  Libraries and modules that cannot be found are left out.
  """
  is_package = file.endswith('__init__.py')
  package = module if is_package else module.rpartition('.')[0]
  for dots, name in _read(file).imports:
    if dots:
      above = package.split('.')[: len(package.split('.')) - dots + 1]
      name = '.'.join([*above, name]).strip('.')
    yield from _found(name)


def _found(name: str) -> Iterator[tuple[str, str]]:
  """Yields a module and its parent packages, unless they are a library's."""
  top, *rest = name.split('.')
  try:
    spec = util.find_spec(top) if top else None
  except (ImportError, ValueError):  # For `__main__`, for example.
    return
  while spec is not None:
    if spec.origin and spec.origin.endswith('.py'):
      if not user_errors.is_own(spec.origin):
        return
      yield spec.name, spec.origin
    if not rest or not spec.submodule_search_locations:
      return
    folders = spec.submodule_search_locations
    inner, *rest = rest
    spec = machinery.PathFinder.find_spec(f'{spec.name}.{inner}', folders)
