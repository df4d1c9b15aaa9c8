"""Checks that every figure in README and docs names a command that exists.

  python docs/check.py

A figure is a measured number. It stands between two marks, and the first mark
names the conditions. The command is in the first mark or between the two, in
code:

  <!-- measured: `python -m benchmarks.speed.start`, 2 cores -->
  The first step takes 4.5 s.
  <!-- /measured -->

Marks around text that a program writes have another name. In
benchmarks/README.md each section counts as a marked part.

This script finds a number with %, ±, `times`, `points` or a unit; a number with
three decimals or more; a cell of a table that is only a number with a decimal
point or a thousands separator; and any decimal number in a block of `text`. It
ignores code, confidence levels, and sentences with the word "paper". It misses
whole numbers, "a tenth", "5 minutes", and the contents of pictures.

It looks up every command of a page in the sources: the file, the target of
make, the flags, and the config's file, method, variant and fields. It does not
look up the values of other flags, or arguments of optimizers. Each word of
`sync.trigger.delta` is looked up by itself, so a field that only another method
or part has passes.
"""

import ast
from collections.abc import Iterator, Sequence
import functools
import itertools
import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEASUREMENTS = 'benchmarks/README.md'
PAGES = ['README.md', 'CONTRIBUTING.md', MEASUREMENTS]
PAGES += sorted(f'docs/{path.name}' for path in ROOT.glob('docs/*.md'))

FENCE = re.compile(r'^( *)```(\w*).*\n((?:.*\n)*?)\1```$', re.M)
CODE = re.compile(r'`((?:(?!\n\n)[^`])+)`')
URL = re.compile(r'\]\([^)]*\)')
COMMENT = re.compile(r'<!--.*?-->', re.S)
MARK = re.compile(r'^<!-- /?\w+', re.M)
PART = re.compile(
  r'^<!-- (\w+)(?:: (?:(?!-->).)*)? -->(?:(?!^<!-- ).)*^<!-- /\1 -->',
  re.M | re.S,
)
SECTION = re.compile(r'^#.*\n(?:(?!#).*\n)*', re.M)
BLOCK = re.compile(r'(?:.*\S.*\n)+')
END = re.compile(r'[.!?]\s|\|\n|\n\n')
SENTENCE = re.compile(rf'(?:(?!{END.pattern}).)+', re.S)

UNIT = r'(?:%(?!\s+interval)|±|(?:ms|us|s|kB|MB|GB|times|points)\b)'
FIGURE = re.compile(
  rf'(?<![\w.])(?:\d[\d,.]*\s*{UNIT}|\d+\.\d{{3,}}\b|\d[\d.]*e-\d)'
)
CELL = re.compile(r'(?<=\|)[ +-]*(?:\d[\d,]*\.\d+|\d{1,3}(?:,\d{3})+) *(?=\|)')
DECIMAL = re.compile(r'(?<![\w.])\d+\.\d+\b')

FIELD = re.compile(
  r'(?:--config\.|--sweep[= ]|\+(?=\S+=))([a-z][a-z\d_.]*)(?=[= ]|$)'
)
CONSTRUCTORS = (
  *('data/partitions.py', 'data/sources/*.py', 'methods/*.py', 'models/*.py'),
  *('optimizers.py', 'simulate/cluster.py', 'simulate/asynchronous/*.py'),
  *('sync/*.py', '../docs/recipes/*.py'),
)
"""The files, seen from the package, in which constructors declare fields."""
OTHERS = {'sync', 'method', 'model_state', 'optimizer_state', *'ab'}
"""Words of fields that no constructor declares; `any_of` takes any, as `a`."""

Problem = tuple[int, str]
"""A position in a page, and what is wrong there."""


def blank(pattern: re.Pattern, text: str) -> str:
  """The text with spaces in place of each match of the pattern."""
  return pattern.sub(lambda match: re.sub(r'\S', ' ', match[0]), text)


def figures(text: str) -> Iterator[Problem]:
  """The first figure of each paragraph, table and block of text."""
  for block in FENCE.finditer(text):
    if block[2] == 'text' and (found := DECIMAL.search(block[3])):
      yield block.start(3) + found.start(), found[0]
  for pattern in (FENCE, COMMENT, CODE, URL):
    text = blank(pattern, text)
  for block in BLOCK.finditer(text):
    found = [(cell.start(), cell[0]) for cell in CELL.finditer(block[0])]
    for sentence in SENTENCE.finditer(block[0]):
      if 'paper' not in sentence[0]:
        found += [
          (sentence.start() + figure.start(), figure[0])
          for figure in FIGURE.finditer(sentence[0])
        ]
    if found:
      start, figure = min(found)
      yield block.start() + start, ' '.join(figure.split())


def commands(text: str) -> Iterator[tuple[int, str, list[str]]]:
  """The position, the file and the arguments of each command of ours.

  Flags alone, as in "and with `--steps=5`", belong to the command before them
  in the same sentence, or the same row of a table.
  """
  lines = [
    (block.start(3) + line.start(), line[0].replace('\\\n', ' '))
    for block in FENCE.finditer(text)
    if block[2] in ('sh', 'text')
    for line in re.finditer(r'\S(?:.*\\\n)*.*', block[3])
  ]
  spans = CODE.finditer(blank(FENCE, text))
  lines += [(span.start(), ' '.join(span[1].split())) for span in spans]
  file, end = '', 0
  for start, line in sorted(lines):
    try:
      words = shlex.split(line, comments=True)
    except ValueError:  # No line of a shell.
      continue
    if command := resolve(words):
      file, arguments = command
      yield start, file, arguments
      _, _, launched = ' '.join(words).partition(' -- ')
      inner = resolve(launched.split())
      if inner and '/' in inner[0]:  # Not a script of the reader's own.
        yield start, *inner
      end = start + len(line)
    elif line.startswith('--') and file and not END.search(text, end, start):
      yield start, file, words


def resolve(words: Sequence[str]) -> tuple[str, list[str]] | None:
  """The file that a line runs, and its arguments; none if it is not ours."""
  words = [*itertools.dropwhile(re.compile(r'\w+=').match, words)]
  match [word.removeprefix('.venv/bin/') for word in words]:
    case ['python', '-m', 'pytest', *_]:
      return None
    case ['make', *arguments]:
      return 'Makefile', arguments
    case ['selsync', name, *arguments] | [
      'python',
      '-m',
      'selsync_jax',
      name,
      *arguments,
    ] if name.isidentifier():
      return f'selsync_jax/commands/{name}.py', arguments
    case ['python', ('train.py' | 'compare.py') as name, *arguments]:
      return f'selsync_jax/commands/{name}', arguments
    case [('train.py' | 'compare.py') as name, first, *others]:
      return f'selsync_jax/commands/{name}', [first, *others]
    case ['python', '-m', module, *arguments]:
      return source(module), arguments
    case ['python', script, *arguments] if script.endswith('.py'):
      return script, arguments
    case [name, *arguments] if name.startswith(('benchmarks.', 'stress.')):
      return source(name), arguments
  return None


def source(module: str) -> str:
  """The file of a module, which may be a package that runs."""
  path = module.replace('.', '/')
  package = f'{path}/__main__.py'
  return package if (ROOT / package).exists() else f'{path}.py'


def missing(file: str, arguments: Sequence[str]) -> str:
  """The first missing thing that a command names, or an empty text."""
  if not re.fullmatch(
    r'[a-z\d_/.-]+|Makefile', file
  ):  # `python -m stress.NAME`.
    return ''
  if not (ROOT / file).exists():
    return f'there is no {file}'
  if file == 'Makefile':
    targets = re.findall(r'^(\S+):', (ROOT / file).read_text(), re.M)
    gone = [a for a in arguments if '=' not in a and a not in targets]
    return f'Makefile has no target {gone[0]}' if gone else ''
  own = [*itertools.takewhile(lambda argument: argument != '--', arguments)]
  for argument, following in itertools.zip_longest(own, own[1:], fillvalue=''):
    name, _, value = argument.partition('=')
    if name == '--config' and (lack := missing_config(value or following)):
      return lack
    is_flag = name.startswith('--') and not name.startswith('--config.')
    if is_flag and name not in flags(ROOT / file):
      return f'{file} has no flag {name}'
  fields = FIELD.findall(' '.join(own))
  gone = [field for field in fields if not is_field(field)]
  return f'no config has a field {gone[0]}' if gone else ''


def missing_config(argument: str) -> str:
  """The first missing thing that a `FILE:METHOD,VARIANT` names, or none."""
  name, _, names = argument.partition(':')
  if not name.islower():  # `FILE:METHOD`.
    return ''
  places = ROOT / name, ROOT / 'configs' / name, ROOT / f'configs/{name}.py'
  path = next((place for place in places if place.is_file()), None)
  if not path:
    return f'there is no config {name}'
  known = {''}
  for package in ('methods', 'simulate/asynchronous'):
    for table in (ROOT / 'selsync_jax' / package).glob('*.py'):
      known |= set(re.findall(r"^ +'(\w+)':", table.read_text(), re.M))
  for source in (path, ROOT / 'configs/base.py'):
    known |= set(re.findall(r"'(\w+)'", source.read_text()))
  unknown = [each for each in names.split(',') if each not in known]
  return f'{name} has no {unknown[0]}' if unknown else ''


def is_field(name: str) -> bool:
  """Whether a config may have a field of this dotted name."""
  declared = (ROOT / 'selsync_jax/fields.py').read_text()
  whole = re.findall(r"^  '([\w.]+)': (?:Field|_changeable)\(", declared, re.M)
  words = re.sub(r'\b(optimizer|outer)\..*', r'\1.name', name).split('.')
  known = {*'.'.join(whole).split('.'), *parameters(), *OTHERS}
  return name in whole or (len(words) > 1 and known.issuperset(words))


@functools.cache
def parameters() -> set[str]:
  """The parameters of all constructors, as far as they are fields."""
  found = set()
  for path in (p for c in CONSTRUCTORS for p in ROOT.glob(f'selsync_jax/{c}')):
    for node in ast.walk(ast.parse(path.read_text())):
      match node:
        case ast.FunctionDef(decorator_list=[ast.Name(id='part')]):
          found |= {argument.arg for argument in node.args.args}
        case ast.Call(ast.Name('Method'), [_, _, ast.Call(keywords=given), *_]):
          found |= {keyword.arg for keyword in given}
        case ast.arguments():
          found |= {argument.arg for argument in node.kwonlyargs}
        case ast.ClassDef(bases=[] | [ast.Attribute(attr='Module')]):
          lines = [x for x in node.body if isinstance(x, ast.AnnAssign)]
          found |= {line.target.id for line in lines}
  return found


@functools.cache
def flags(path: pathlib.Path) -> set[str]:
  """The flags that a file declares, or one beside it that it imports."""
  tree, found = ast.parse(path.read_text()), {'--help'}
  for node in ast.walk(tree):
    match node:
      case ast.Call(
        func=ast.Name(id=kind) | ast.Attribute(attr=kind),
        args=[ast.Constant(value=str(name)), *_],
      ) if kind in ('add', 'add_argument', 'flag', 'switch'):
        name = name.removeprefix('--')
        found.add(f'--{name}')
        if kind == 'switch':
          found.add(f'--no{name}')
      # See benchmarks/table.py.
      case ast.Call(
        func=ast.Name(id='parser') | ast.Attribute(attr='parser'),
        keywords=numbers,
      ):
        found |= {'--out', *(f'--{each.arg}' for each in numbers)}
  for node in tree.body:
    if isinstance(node, ast.ImportFrom):
      inside = [f'{node.module}.{alias.name}' for alias in node.names]
      for module in [node.module, *inside]:
        beside = (ROOT / module.replace('.', '/')).with_suffix('.py')
        if beside.parent == path.parent and beside.exists():
          found |= flags(beside)
  return found


def problems(page: str, text: str) -> Iterator[Problem]:
  """The problems of a page."""
  marked = SECTION if page == MEASUREMENTS else PART
  every = [*commands(text)]
  for start, file, arguments in every:
    if lack := missing(file, arguments):
      yield start, lack
  for part in marked.finditer(text):
    if not any(part.start() <= start < part.end() for start, *_ in every):
      yield part.start(), 'no command between these marks'
  rest = blank(marked, text)
  for start, figure in figures(rest):
    yield start, f'{figure} is between no marks that name its command'
  for mark in MARK.finditer(rest):
    yield mark.start(), f'{mark[0]} has no partner'


def check(page: str, text: str) -> list[str]:
  """A line for each problem of a page."""
  return [
    f'{page}:{text[:start].count(chr(10)) + 1}: {line}'
    for start, line in sorted(problems(page, text))
  ]


def main() -> None:
  """Prints all problems; the exit code is 1 if there are any."""
  found = [
    line for page in PAGES for line in check(page, (ROOT / page).read_text())
  ]
  print(*found, sep='\n', end='\n' * bool(found))
  sys.exit(bool(found))


if __name__ == '__main__':
  main()
