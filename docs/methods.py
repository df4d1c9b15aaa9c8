"""Writes the tables of methods, parts and their fields into their pages.

  python docs/methods.py

Everything in them is read from the constructors in `selsync_jax.methods`,
`selsync_jax.sync` and `selsync_jax.simulate`: names and defaults of the fields
from their signatures, the rest from their docstrings.
"""

from collections.abc import Callable, Mapping
import inspect
import pathlib
import re
import sys

import jax

from selsync_jax import fields, methods, optimizers
from selsync_jax.methods import parts
from selsync_jax.methods.row import Method
from selsync_jax.simulate import cluster
from selsync_jax.simulate.asynchronous import ASYNCHRONOUS
from selsync_jax.sync import traffic

FOLDER = pathlib.Path(__file__).resolve().parent
HEAD = '| {} | field | default | what it is |\n|---|---|---|---|\n'


def arguments(docstring: str) -> dict[str, str]:
  """The descriptions in the `Args` section of a docstring, by name."""
  section = docstring.partition('Args:\n')[2].partition('\n\n')[0]
  found = re.findall(r'^  \*{0,2}(\w+): (.*(?:\n    .*)*)', section, re.M)
  return {name: ' '.join(text.split()) for name, text in found}


def words(constructor: Callable) -> dict[str, str]:
  """The descriptions of the fields of a constructor, by name."""
  if isinstance(constructor, Method):  # Its parts describe them.
    return {
      field: arguments(inspect.getdoc(source) or '')[parameter.name]
      for field, (source, parameter) in constructor.sources.items()
    }
  return arguments(inspect.getdoc(constructor) or '')


def references(method: Callable) -> str:
  """The references of a method's docstring, or its file's, on one line."""
  places = method, sys.modules[method.__module__]
  found = (
    (inspect.getdoc(place) or '').partition('References:\n')[2]
    for place in places
  )
  return ' '.join(next(filter(None, found), '').split()).replace('`', '*')


def shown(default: object) -> str:
  """A default in the form that a reader would type."""
  if default is inspect.Parameter.empty:
    return 'required'
  text = default if isinstance(default, str) else repr(default)
  return f'`{text}`'


def rows(
  name: str, constructor: Callable, fields: Mapping[str, object]
) -> list[str]:
  """A row for a constructor, and a row below it for each of its fields."""
  docstring = inspect.getdoc(constructor) or ''
  does = ' '.join(docstring.split('\n\n')[0].split())
  described = words(constructor)
  if missing := sorted(fields.keys() - described.keys()):
    raise ValueError(f'{name}: its docstring lacks {missing[0]} in `Args:`')
  return [
    f'| `{name}` | | | {does} |',
    *(
      f'| | `{field}` | {shown(default)} | {described[field]} |'
      for field, default in fields.items()
    ),
  ]


def defaults(constructor: Callable) -> dict[str, object]:
  """The fields of a constructor, and their defaults."""
  every = inspect.signature(constructor).parameters
  return {k: p.default for k, p in every.items() if p.kind is p.KEYWORD_ONLY}


def methods_table(table: Mapping[str, Callable]) -> str:
  """Methods with their sources."""
  lines = []
  for name, method in table.items():
    first, *rest = rows(name, method, defaults(method))
    source = references(method)
    lines += [first.removesuffix('|') + f'{source} |', *rest]
  return HEAD.format('method') + '\n'.join(lines) + '\n'


def fields_table() -> str:
  """The fields that belong to no constructor."""
  lines = ['| field | default | what it is | values | at a resume |']
  lines += ['|---|---|---|---|---|']
  for name, field in fields.FIELDS.items():
    default = '' if field.default is None else f'`{field.default}`'
    resume = 'may change' if field.may_change else ''
    lines.append(
      f'| `{name}` | {default} | {field.sentence} | {field.values} | {resume} |'
    )
  return '\n'.join(lines) + '\n'


def constructors_table(kind: str, table: Mapping[str, Callable]) -> str:
  """Constructors, and their fields."""
  lines = []
  for name, constructor in table.items():
    lines += rows(name, constructor, defaults(constructor))
  return HEAD.format(kind) + '\n'.join(lines) + '\n'


def parts_table(kind: str) -> str:
  """The parts of one kind."""
  lines = []
  for name, constructor in methods.PARTS[kind].items():
    fields = {
      field: p.default for field, p in parts.parameters(constructor).items()
    }
    lines += rows(name, constructor, fields)
  return HEAD.format(kind) + '\n'.join(lines) + '\n'


def composition_table() -> str:
  """The parts of each preset, and what they send in units of BSP's step."""
  workers = 4
  shapes = {
    'params': {'w': jax.ShapeDtypeStruct((1000, 1000), 'float32')},
    'model_state': {},
  }
  lines = []
  for name in methods.METHODS:
    strategy = methods.create_strategy(name, methods.Context(40, 0))
    sent = traffic.traffic(
      strategy.sends(shapes, workers), shapes['params'], workers
    )
    lines.append(
      f'| `{name}` | `{strategy.trigger}` '
      f'| `{strategy.averager}` '
      f'| `{strategy.reducer}` '
      f'| {sent.step / sent.bsp:.2g} | {sent.sync / sent.bsp:.2g} |'
    )
  head = '| method | trigger | averager | reducer | step | synchronization |'
  return f'{head}\n|---|---|---|---|---:|---:|\n' + '\n'.join(lines) + '\n'


def tables() -> dict[str, dict[str, str]]:
  """By page, the tables between its markers, by name."""
  return {
    'methods.md': {
      'methods': methods_table(methods.METHODS),
      'composition': composition_table(),
      **{kind: parts_table(kind) for kind in methods.PARTS},
    },
    'fields.md': {
      'fields': fields_table(),
      'schedules': constructors_table('schedule', optimizers.SCHEDULES),
    },
    'stragglers.md': {
      'methods': methods_table(ASYNCHRONOUS),
      'clusters': constructors_table('compute', cluster.COMPUTE),
    },
  }


def update(text: str, tables: Mapping[str, str]) -> str:
  """A page with the parts between its markers written again."""
  for name, table in tables.items():
    block = re.compile(rf'(<!-- {name}: .*? -->\n).*(<!-- /{name} -->)', re.S)
    text, count = block.subn(lambda m, t=table: m[1] + t + m[2], text)
    assert count == 1, f'needs <!-- {name}: ... --> once'
  return text


def main() -> None:
  """Writes the pages."""
  for name, own in tables().items():
    page = FOLDER / name
    page.write_text(update(page.read_text(), own))


if __name__ == '__main__':
  main()
