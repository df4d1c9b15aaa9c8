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
import optax

from selsync_jax import fields, methods, optimizers
from selsync_jax.methods import parts
from selsync_jax.methods.row import Method
from selsync_jax.simulate import cluster
from selsync_jax.simulate.asynchronous import ASYNCHRONOUS
from selsync_jax.sync import traffic

FOLDER = pathlib.Path(__file__).resolve().parent
HEAD = '| {} | what it is |\n|---|---|\n'
# Ends a sentence; the next one may begin with a value.
SENTENCE = re.compile(r'(?<=\.) +(?=[A-Z\d`])')
ARTICLE = re.compile(r'^(the|a|an) ')
VALUE = re.compile(r'[\d`]')
SHORTER = {
  'a whole number at least': 'whole ≥',
  'a whole number': 'whole',
  'a finite number above': 'number >',
  'a finite number': 'number',
  'one of ': '',
  'a tuple, and each element a value': 'tuple',
  'a tuple, and each element a name': 'tuple of names',
  ' in [': ' [',
  ' in (': ' (',
}
NO_PART = 'no_averaging()', 'no_reduction()', 'local()'


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


def brief(text: str) -> str:
  """The first sentence without its article, and sentences about a value."""
  first, *others = SENTENCE.split(ARTICLE.sub('', text))
  return ' '.join([first, *filter(VALUE.match, others)])


def assigned(field: str, default: object = inspect.Parameter.empty) -> str:
  """A field, and its default if it has one, in the form of a flag."""
  if default is inspect.Parameter.empty:
    return f'`{field}`'
  return f'`{field}={typed(default)}`'


def typed(value: object) -> str:
  """A value without the quotes of a string, and a dict by its constructor."""
  if isinstance(value, dict):
    return f'dict({", ".join(f"{k}={v!r}" for k, v in value.items())})'
  return value if isinstance(value, str) else repr(value)


def summary(constructor: Callable) -> str:
  """The first paragraph of a docstring, on one line."""
  docstring = inspect.getdoc(constructor) or ''
  return ' '.join(docstring.split('\n\n')[0].split())


def rows(
  name: str,
  constructor: Callable,
  fields: Mapping[str, object],
  cell: Callable[[str], str] = str,
) -> list[str]:
  """A row for a constructor, and a row below it for each of its fields."""
  described = words(constructor)
  if missing := sorted(fields.keys() - described.keys()):
    raise ValueError(f'{name}: its docstring lacks {missing[0]} in `Args:`')
  return [
    f'| `{name}` | {summary(constructor)} |',
    *(
      f'| {assigned(f".{field}", default)} | {cell(described[field])} |'
      for field, default in fields.items()
    ),
  ]


def defaults(constructor: Callable) -> dict[str, object]:
  """The fields of a constructor, and their defaults."""
  every = inspect.signature(constructor).parameters
  return {k: p.default for k, p in every.items() if p.kind is p.KEYWORD_ONLY}


def asynchronous_table() -> str:
  """The asynchronous methods with their sources, and their fields."""
  lines = []
  for name, method in ASYNCHRONOUS.items():
    first, *rest = rows(name, method, defaults(method))
    lines += [first.removesuffix('|') + f'{references(method)} |', *rest]
  return HEAD.format('method') + '\n'.join(lines) + '\n'


def methods_table() -> str:
  """A line for each method, with its fields and its source."""
  lines = ['| method | what it does | fields | source |', '|---|---|---|---|']
  first: dict[str, str] = {}  # The method that has a source first.
  for name, method in methods.METHODS.items():
    given = ', '.join(assigned(*field) for field in defaults(method).items())
    source = method.cites if isinstance(method, Method) else references(method)
    if first.setdefault(source, name) != name:
      source = f'as `{first[source]}`'
    else:
      source = source.replace('`', '*')
    lines.append(f'| `{name}` | {summary(method)} | {given} | {source} |')
  return '\n'.join(lines) + '\n'


def own_fields_table() -> str:
  """The fields of methods that are not fields of their parts."""
  known = {part for table in methods.PARTS.values() for part in table.values()}
  triggers = methods.PARTS['trigger'].values()
  names = set().union(
    *(inspect.signature(part).parameters for part in triggers)
  )
  owners: dict[tuple[str, str], list[str]] = {}
  for name, method in methods.METHODS.items():
    described = words(method)
    for field in defaults(method):
      if isinstance(method, Method):
        is_known = method.sources[field][0] in known
      else:  # It passes fields to its trigger.
        is_known = field in names
      if not is_known:
        row = field, brief(described[field])
        owners.setdefault(row, []).append(f'`{name}`')
  lines = ['| field | methods | what it is |', '|---|---|---|']
  lines += [
    f'| `{field}` | {", ".join(own)} | {text} |'
    for (field, text), own in owners.items()
  ]
  return '\n'.join(lines) + '\n'


def range_of(field: fields.Field) -> str:
  """The allowed values in few words, unless the description lists them."""
  text = field.values
  for long, short in SHORTER.items():
    text = text.replace(long, short)
  is_listed = all(f'`{value}`' in field.sentence for value in text.split(', '))
  return '' if is_listed else text


def fields_table() -> str:
  """The fields that belong to no constructor."""
  lines = ['| field | what it is | values |', '|---|---|---|']
  for name, field in fields.FIELDS.items():
    given = () if field.default is None else (field.default,)
    text = re.sub(r'^The (\w)', lambda m: m[1].upper(), field.sentence)
    change = r'\*' if field.may_change else ''
    lines.append(
      f'| {assigned(name, *given)}{change} | {text} | {range_of(field)} |'
    )
  return '\n'.join(lines) + '\n'


def constructors_table(
  kind: str,
  table: Mapping[str, Callable],
  fields_of: Callable[[Callable], dict[str, object]],
  shorten: Callable[[str], str] = brief,
) -> str:
  """Constructors and their fields; a repeated text names its first owner."""
  lines, first = [], {}
  for name, constructor in table.items():

    def cell(text, name=name):
      text = shorten(text)
      owner = first.setdefault(text, name)
      return text if owner == name or len(text) < 30 else f'see `{owner}`'

    lines += rows(name, constructor, fields_of(constructor), cell)
  return HEAD.format(kind) + '\n'.join(lines) + '\n'


def parts_table(kind: str) -> str:
  """The parts of one kind."""

  def fields_of(constructor):
    found = parts.parameters(constructor)
    return {field: p.default for field, p in found.items()}

  return constructors_table(kind, methods.PARTS[kind], fields_of)


def composition_table() -> str:
  """The averages and messages of methods, in units of BSP's step."""
  workers = 4
  shapes = {
    'params': {'w': jax.ShapeDtypeStruct((1000, 1000), 'float32')},
    'model_state': {},
  }
  moments = jax.eval_shape(optax.adam(0.1).init, shapes['params'])
  groups: dict[str, list[str]] = {}
  for name in methods.METHODS:
    strategy = methods.create_strategy(name, methods.Context(40, 0))
    sends = strategy.sends(shapes, workers, moments)
    sent = traffic.traffic(sends, shapes['params'], workers)
    used = ', '.join(
      f'`{part}`' for part in map(str, strategy[1:4]) if part not in NO_PART
    )
    row = f'{used} | {sent.step / sent.bsp:.2g} | {sent.sync / sent.bsp:.2g}'
    groups.setdefault(row, []).append(f'`{name}`')
  head = '| methods | averager, reducer, policy | step | synchronization |'
  lines = [f'| {", ".join(names)} | {row} |' for row, names in groups.items()]
  return '\n'.join([head, '|---|---|---:|---:|', *lines]) + '\n'


def tables() -> dict[str, dict[str, str]]:
  """By page, the tables between its markers, by name."""
  return {
    'methods.md': {
      'methods': methods_table(),
      'own': own_fields_table(),
      'composition': composition_table(),
      **{kind: parts_table(kind) for kind in methods.PARTS},
    },
    'fields.md': {
      'fields': fields_table(),
      'schedules': constructors_table(
        'schedule', optimizers.SCHEDULES, defaults
      ),
    },
    'stragglers.md': {
      'methods': asynchronous_table(),
      'clusters': constructors_table('compute', cluster.COMPUTE, defaults, str),
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
