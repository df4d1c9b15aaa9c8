"""Draws the rooms of the package and their imports into architecture.md.

  python docs/architecture.py

A room is a folder or file directly inside `selsync_jax`. An arrow means that
one room imports another. The picture is the transitive reduction: an arrow that
follows from other arrows is left out. A room's purpose is the first line of its
docstring.
"""

import ast
from collections.abc import Iterator
import graphlib
import pathlib
import re

PACKAGE = 'selsync_jax'
ROOT = pathlib.Path(__file__).resolve().parent.parent
# Where a user enters: files that no room imports, and their labels.
DOORS = {
  'train': ('train.py', ROOT / 'train.py'),
  'compare': ('compare.py', ROOT / 'compare.py'),
  '__main__': ('python -m selsync_jax', ROOT / PACKAGE / '__main__.py'),
  '__init__': ('import selsync_jax', ROOT / PACKAGE / '__init__.pyi'),
}
PAGE = pathlib.Path(__file__).resolve().parent / 'architecture.md'
BLOCK = re.compile(r'(<!-- rooms: .*? -->\n).*(<!-- /rooms -->)', re.S)
Graph = dict[str, set[str]]


def imports(path: pathlib.Path) -> Iterator[list[str]]:
  """Yields the dotted name of everything that a file imports, split at dots."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name.split('.') for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      above = [PACKAGE] if node.level else []  # As in the package's stub.
      path_to = [*above, *node.module.split('.')]
      yield from ([*path_to, alias.name] for alias in node.names)


def rooms() -> dict[str, list[pathlib.Path]]:
  """The files of each room; markers and the link to `configs` are no rooms."""
  found = {}
  for path in sorted((ROOT / PACKAGE).iterdir()):
    if path.is_symlink():
      continue
    if path.is_dir() and not path.name.startswith('__'):
      found[path.name] = sorted(path.rglob('*.py'))
    elif path.suffix == '.py' and not path.name.startswith('__'):
      found[path.stem] = [path]
  return found


def read_graph(files: dict[str, list[pathlib.Path]]) -> Graph:
  """The rooms that the files of each room import."""
  graph = {}
  for room, paths in files.items():
    names = [name for path in paths for name in imports(path)]
    graph[room] = {name[1] for name in names if name[0] == PACKAGE and name[1:]}
    graph[room] &= files.keys() - {room}
  return graph


def bottom_up(graph: Graph) -> list[str]:
  """The rooms, each after the rooms that it imports.

  Raises:
    graphlib.CycleError: if rooms import each other.
  """
  order: list[str] = []
  sorter = graphlib.TopologicalSorter(graph)
  sorter.prepare()
  while ready := sorted(sorter.get_ready(), reverse=True):
    sorter.done(*ready)
    order += ready
  return order


def reduce(graph: Graph) -> Graph:
  """The transitive reduction: the arrows that follow from no others."""
  reduced: Graph = {}
  reachable: Graph = {}
  for room in bottom_up(graph):
    indirect = {far for near in graph[room] for far in reachable[near]}
    reduced[room] = graph[room] - indirect
    reachable[room] = graph[room] | indirect
  return reduced


def purpose(paths: list[pathlib.Path]) -> str:
  """The first line of the docstring of a room's first file."""
  docstring = ast.get_docstring(ast.parse(paths[0].read_text()))
  assert docstring, f'{paths[0]} has no docstring'
  return docstring.splitlines()[0].rstrip('.')


def picture(graph: Graph) -> str:
  """The graph in Mermaid, from the top down; doors are rounded."""
  order, arrows = bottom_up(graph)[::-1], reduce(graph)
  lines = ['flowchart TD']
  for name in order:
    if name in DOORS:
      lines.append(f'  {name.strip("_")}(["{DOORS[name][0]}"])')
  for name in order:
    if below := [to.strip('_') for to in order if to in arrows[name]]:
      lines.append(f'  {name.strip("_")} --> {" & ".join(below)}')
  return '\n'.join(['```mermaid', *lines, '```', ''])


def table(files: dict[str, list[pathlib.Path]], order: list[str]) -> str:
  """Each room's purpose, in Markdown."""
  lines = ['| room | purpose |', '|---|---|']
  for room in order:
    folder = (ROOT / PACKAGE / room).is_dir()
    name = f'{room}/' if folder else f'{room}.py'
    link = f'[{name}](../{PACKAGE}/{name})'
    lines.append(f'| {link} | {purpose(files[room])} |')
  return '\n'.join([*lines, ''])


def update(text: str) -> str:
  """The page with the part between its markers drawn again."""
  files = rooms()
  graph = read_graph(files)
  doors = {door: [path] for door, (_, path) in DOORS.items()}
  order = bottom_up(graph)[::-1]
  drawn = f'{picture(read_graph(files | doors))}\n{table(files, order)}'
  new, count = BLOCK.subn(lambda match: match[1] + drawn + match[2], text)
  assert count == 1, f'{PAGE} needs <!-- rooms: ... --> once'
  return new


def main() -> None:
  """Writes the page."""
  PAGE.write_text(update(PAGE.read_text()))


if __name__ == '__main__':
  main()
