"""What README and docs tell a reader to do, done as it stands there."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from unittest import mock

from absl import flags
from absl.testing import flagsaver
import pytest

from selsync_jax import report
from selsync_jax import trainer
from selsync_jax import trials
import train

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ['README.md', *sorted(f'docs/{p.name}' for p in ROOT.glob('docs/*.md'))]


def blocks(page, language):
  """`(line, text)` of the fenced blocks of a language."""
  text = (ROOT / page).read_text()
  for match in re.finditer(rf'^```{language}\n(.*?)^```', text, re.S | re.M):
    yield text[: match.start(1)].count('\n') + 1, match[1]


def commands(page):
  """The arguments of every command in the shell blocks of a page."""
  for _, text in blocks(page, 'sh'):
    for line in text.replace('\\\n', ' ').splitlines():
      if arguments := shlex.split(line, comments=True):
        yield arguments


SNIPPETS = {
  f'{page}:{line}': text
  for page in PAGES
  for line, text in blocks(page, 'python')
}

# Runs snippets on four devices, each in names of its own; says what they print.
RUN = """
import contextlib, io, json, sys, traceback
said = {}
for place, text in json.load(sys.stdin).items():
  out = io.StringIO()
  try:
    with contextlib.redirect_stdout(out):
      exec(compile(text, place, 'exec'), {'__name__': place})
  except Exception:
    out.write(traceback.format_exc())
  said[place] = out.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope='module')
def said():
  """What each snippet prints."""
  done = subprocess.run(
    [sys.executable, '-W', 'error', '-c', RUN],
    env=os.environ | {'JAX_NUM_CPU_DEVICES': '4'},
    input=json.dumps(SNIPPETS),
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.mark.parametrize('snippet', SNIPPETS)
def test_a_snippet_runs_as_it_stands(snippet, said):
  assert 'Traceback' not in said[snippet], said[snippet]
  assert said[snippet], 'shows nothing'


@pytest.mark.parametrize('page', ['docs/own-loop.md', 'docs/flax.md'])
def test_own_loops_synchronise_when_one_worker_asks_for_it(page, said):
  loops = [text for place, text in said.items() if place.startswith(page)]
  assert len(loops) == 2
  for text in loops:
    flags = re.findall('True|False', text)
    assert [i for i, flag in enumerate(flags) if flag == 'True'] == [0, 6]


def test_what_a_comment_says_that_is_printed_is_printed(said):
  decides = [v for k, v in said.items() if k.startswith('docs/how')]
  assert decides == ['inf\n0.000\n0.100\n0.040\n']
  for place in said:
    for comment in re.findall(r'^print\(.*\n# (.*)$', SNIPPETS[place], re.M):
      assert comment in said[place]


# An import hook that stands for an environment with jax and optax alone.
WITHOUT = """
import sys

class Without:
  def find_spec(self, name, path=None, target=None):
    if name.split('.')[0] in {
        'tensorflow', 'tensorflow_datasets', 'flax', 'orbax', 'sklearn',
        'ml_collections', 'rich', 'matplotlib'}:
      raise ModuleNotFoundError(f'{name} is not in this environment')

sys.meta_path.insert(0, Without())
"""


def test_the_readmes_loop_needs_only_jax_and_optax():
  (snippet,) = (text for _, text in blocks('README.md', 'python'))
  done = subprocess.run(
    [sys.executable, '-c', WITHOUT + snippet],
    env=os.environ | {'JAX_NUM_CPU_DEVICES': '4'},
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  changes = [float(c) for c in done.stdout.strip(' []\n').split()]
  assert len(changes) == 4
  assert all(change >= 0 for change in changes)


# What makes a command short enough for a test. The flags that are there are
# read before those that are added.
FEW_STEPS = ('--config.steps=12', '--config.schedule.warmup_epochs=0.0')
SHORT = {
  'train.py': FEW_STEPS,
  'selsync_jax.launch': FEW_STEPS,
  'compare.py': (*FEW_STEPS, '--methods=bsp', '--seeds=1', '--lrs=0.1'),
  'selsync_jax.delta': ('--steps=5',),
  'selsync_jax.plan': ('--steps=5',),
  'selsync_jax.report': (),
  'docs/pictures.py': (),
}
HAVE_DATA = {'train.py', 'selsync_jax.launch', 'compare.py'}
HAVE_DATA |= {'selsync_jax.delta', 'selsync_jax.plan'}


def run_train(arguments):
  """What train.py does, on the devices of this process."""
  command = ['train.py', *arguments]  # Fields of a config are read from argv.
  with flagsaver.flagsaver(), mock.patch.object(sys, 'argv', command):
    train.parse(command)
    workdir, values = train.folder(), flags.FLAGS
    trainer.train_and_evaluate(
      values.config, workdir, restart=values.restart, profile=values.profile
    )
  report.write([workdir], workdir)


def run_process(*arguments):
  """Any command, as it stands."""
  done = subprocess.run(
    [sys.executable, *arguments],
    capture_output=True,
    text=True,
    timeout=200,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr


def plan_comparison(arguments):
  """Sees to it that every run of a comparison could begin."""
  asked = dict(flag.lstrip('-').split('=', 1) for flag in arguments)
  deltas, rates = (
    [float(n) for n in asked.get(name, '').split(',') if n]
    for name in ('deltas', 'lrs')
  )
  trials.plan(
    asked.get('config', 'configs/digits.py'),
    [],
    asked['methods'].split(','),
    deltas,
    rates,
    1,
    pathlib.Path('planned'),
  )


def run(arguments, data_dir):
  """A Python command of a page, made short."""
  module = arguments[0] == '-m'
  name, *given = arguments[module:]
  given += SHORT[name]
  if name in HAVE_DATA:
    given += [f'--config.data.dir={data_dir}']
  if name == 'train.py':
    run_train(given)
  elif name == 'selsync_jax.report':
    report.write([pathlib.Path(workdir) for workdir in given], pathlib.Path())
  else:
    run_process(*['-m'] * module, name, *given)


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
  """A copy of the repository, where `.venv` is this environment."""
  folder = tmp_path_factory.mktemp('clone') / 'selsync_jax'
  ignored = shutil.ignore_patterns('.*', 'runs', '__pycache__', '*.egg-info')
  shutil.copytree(ROOT, folder, ignore=ignored)
  (folder / '.venv').symlink_to(sys.prefix)
  return folder


@pytest.fixture(scope='module')
def once():
  """What has been run: commands, and programs that would be slow twice."""
  return set()


@pytest.mark.parametrize('page', PAGES)
def test_every_command_of_a_page_runs(page, clone, data_dir, once, monkeypatch):
  monkeypatch.chdir(clone)
  for tool, *arguments in commands(page):
    if tool != '.venv/bin/python':
      assert tool in ('make', 'pip'), tool
      continue
    if arguments[0] == 'compare.py':
      plan_comparison(arguments[1:])
    key = arguments[0] if arguments[0] == 'compare.py' else tuple(arguments)
    if key not in once:
      run(arguments, data_dir)
      once.add(key)


def test_make_has_the_targets_that_are_named():
  makefile = (ROOT / 'Makefile').read_text()
  for page in PAGES:
    named = [c[1] for c in commands(page) if c[0] == 'make']
    named += re.findall(r'`make (\w+)', (ROOT / page).read_text())
    for target in named:
      assert re.search(rf'^{target}:', makefile, re.M), target


def test_the_extras_that_are_named_exist():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  extras = project['optional-dependencies']
  for page in PAGES:
    for extra in re.findall(r"-e '\.\[(\w+)\]'", (ROOT / page).read_text()):
      assert extra in extras
  assert extras['cuda'] == ['jax[cuda]']


def anchors(path):
  """What GitHub calls the headings of a page."""
  for heading in re.findall(r'^#+ (.*)$', path.read_text(), re.M):
    plain = re.sub(r'[^\w\- ]', '', heading.lower())
    yield plain.replace(' ', '-')


@pytest.mark.parametrize('page', PAGES)
def test_every_link_leads_somewhere(page):
  text = (ROOT / page).read_text()
  targets = re.findall(r'\]\(([^)\s]+)\)', text)
  assert targets or page not in ('README.md', 'docs/clusters.md')
  for target in targets:
    if '://' in target:
      continue
    file, _, anchor = target.partition('#')
    path = (ROOT / page).parent / file if file else ROOT / page
    assert path.exists(), target
    assert not anchor or anchor in anchors(path), target


def test_every_picture_is_small_and_shown():
  shown = ' '.join((ROOT / page).read_text() for page in PAGES)
  for picture in (ROOT / 'docs' / 'images').iterdir():
    assert picture.stat().st_size < 100_000
    assert f'images/{picture.name})' in shown
