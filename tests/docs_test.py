"""What README and docs tell a reader to do, done as it stands there."""

import importlib.util
import json
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from unittest import mock

import pytest

from selsync_jax.commands import compare
from selsync_jax.commands import delta
from selsync_jax.commands import evaluate
from selsync_jax.commands import export
from selsync_jax.commands import plan
from selsync_jax.commands import report
from selsync_jax.commands import simulate
from selsync_jax.commands import train
from selsync_jax.report import run_page
from selsync_jax.simulate import run as simulation
from selsync_jax.training.train import train_and_evaluate
from tests import own_code

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ['README.md', 'CONTRIBUTING.md']
PAGES += sorted(f'docs/{p.name}' for p in ROOT.glob('docs/*.md'))


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
SAY = """
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
def said(default_run, tmp_path_factory):
  """What each snippet prints, in a folder with the default run."""
  folder = tmp_path_factory.mktemp('reader')
  (folder / 'runs').mkdir()
  (folder / 'runs' / 'digits-selsync').symlink_to(default_run.workdir)
  return say(SNIPPETS, folder, '-W', 'error')


def say(snippets, folder, *flags):
  """What each of these snippets prints."""
  done = subprocess.run(
    [sys.executable, *flags, '-c', SAY],
    cwd=folder,
    env=os.environ | {'JAX_NUM_CPU_DEVICES': '4'},
    input=json.dumps(snippets),
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


@pytest.mark.slow
def test_data_of_ones_own_are_read_from_everywhere(data_dir, tmp_path):
  snippets = {
    f'{line}': text for line, text in blocks('docs/your-own.md', 'py')
  }
  printed = say(snippets, tmp_path)
  assert [text.splitlines()[-1] for text in printed.values()] == [
    "{'train': 100, 'validation': 20, 'test': 30}",
    "{'train': 1131, 'validation': 126, 'test': 360}",
    "{'train': 3, 'validation': 3, 'test': 3}",
  ]


@pytest.mark.parametrize(
  'page', ['docs/own-loop.md', 'docs/flax.md', 'docs/mesh.md']
)
def test_own_loops_synchronize_when_one_worker_asks_for_it(page, said):
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


FEW_STEPS = ('--config.steps=6', '--config.schedule.warmup_epochs=0.0')


def run_train(arguments, data_dir):
  """What `train` does, on the devices of this process, in a few steps.

  But for the report at the end, which would be most of the time.
  """
  fields = [*FEW_STEPS, f'--config.data.dir={data_dir}']
  options = train.parse([*arguments, *fields])
  train_and_evaluate(
    options.config,
    options.workdir,
    restart=options.restart,
    profile=options.profile,
  )


def run_launch(arguments, data_dir):
  """One process does the work of all; processes_test.py launches several."""
  processes, dashes, python, name, *given = arguments
  assert re.fullmatch(r'--processes=\d', processes) and dashes == '--'
  assert (python, name) == ('.venv/bin/python', 'train.py')
  run_train(given, data_dir)


def run_main(main, *short):
  """Runs a command by its main, with flags that make it short."""

  def run(arguments, data_dir):
    main([*arguments, *(flag.format(data_dir=data_dir) for flag in short)])

  return run


def run_weights(main):
  """Runs a command on a run, which is trained if it is not there."""

  def run(arguments, data_dir):
    workdir, *_ = arguments
    if not pathlib.Path(workdir).exists():
      run_train([f'--workdir={workdir}'], data_dir)
    main(arguments)

  return run


def run_pictures(arguments, data_dir):
  workdir = pathlib.Path(arguments[0])
  run_page.write([workdir], workdir)
  script = runpy.run_path('docs/pictures.py')
  with mock.patch.object(sys, 'argv', ['', *arguments]):
    script['main']()


def run_script(path):
  """A script of the docs, without arguments."""

  def run(arguments, data_dir):
    assert not arguments
    runpy.run_path(path)['main']()

  return run


def run_compare(arguments, data_dir):
  """The whole command with one seed and one rate; it trains in this process."""

  def run(trial):
    execute = {'train': train_and_evaluate, 'simulate': simulation.simulate}
    execute[trial.command](trial.config, trial.workdir)

  short = ('--seeds=1', '--lrs=0.1', '--config.mapper=vmap', *FEW_STEPS)
  fields = [*short, f'--config.data.dir={data_dir}']
  compare.main([*arguments, *fields], run)


# On the devices that are there.
BRIEFLY = ('--steps=5', '--config.mapper=vmap', '--config.data.dir={data_dir}')
RUN_COMMAND = {
  ('train.py',): run_train,
  ('compare.py',): run_compare,
  ('docs/pictures.py',): run_pictures,
  ('docs/architecture.py',): run_script('docs/architecture.py'),
  ('docs/methods.py',): run_script('docs/methods.py'),
  ('-m', 'selsync_jax', 'launch'): run_launch,
  ('-m', 'selsync_jax', 'report'): run_main(report.main),
  ('-m', 'selsync_jax', 'export'): run_weights(export.main),
  ('-m', 'selsync_jax', 'evaluate'): run_weights(evaluate.main),
  ('-m', 'selsync_jax', 'simulate'): run_main(
    simulate.main, '--noreport', '--config.data.dir={data_dir}', *FEW_STEPS
  ),
  ('-m', 'selsync_jax', 'delta'): run_main(delta.main, *BRIEFLY),
  ('-m', 'selsync_jax', 'plan'): run_main(plan.main, *BRIEFLY),
}


@pytest.fixture(autouse=True)
def definitions_of_pages():
  """What the config of a page registers is gone after the test."""
  with own_code.forgotten():
    yield


@pytest.fixture(scope='module')
def clone(tmp_path_factory):
  """A copy of the repository, for commands to write into."""
  folder = tmp_path_factory.mktemp('clone') / 'selsync_jax'
  ignored = shutil.ignore_patterns('.*', 'runs', '__pycache__', '*.egg-info')
  shutil.copytree(ROOT, folder, ignore=ignored)
  return folder


@pytest.fixture(scope='module')
def ran():
  """Commands that have been run: pages repeat each other."""
  return set()


PARSE = {('train.py',): train.parse, ('compare.py',): compare.parse}


def split(command):
  """The words that name a command of Python, and its arguments."""
  tool, *arguments = command
  assert tool == '.venv/bin/python', tool
  words = 3 if arguments[0] == '-m' else 1
  return tuple(arguments[:words]), arguments[words:]


def python_commands(page):
  for command in commands(page):
    # install_test.py runs those without a checkout.
    if command[0] not in ('make', 'pip', 'python', 'selsync'):
      yield split(command)


@pytest.mark.parametrize('page', PAGES)
def test_every_command_of_a_page_is_understood(page, monkeypatch, tmp_path):
  monkeypatch.chdir(ROOT)
  for name, arguments in python_commands(page):
    assert name in RUN_COMMAND
    if name in PARSE:
      out = [f'--out={tmp_path}'] if name == ('compare.py',) else []
      PARSE[name]([*arguments, *out])


def test_the_first_command_of_the_readme_runs(clone, data_dir, monkeypatch):
  monkeypatch.chdir(clone)
  name, arguments = next(python_commands('README.md'))
  RUN_COMMAND[name](arguments, data_dir)


QUICK = ('docs/architecture.md',)


@pytest.mark.parametrize(
  'page',
  [
    pytest.param(page, marks=[] if page in QUICK else pytest.mark.slow)
    for page in PAGES
  ],
)
def test_every_command_of_a_page_runs(page, clone, data_dir, ran, monkeypatch):
  monkeypatch.chdir(clone)
  for name, arguments in python_commands(page):
    if (name, *arguments) not in ran:
      RUN_COMMAND[name](arguments, data_dir)
      ran.add((name, *arguments))


def test_make_has_the_targets_that_are_named():
  makefile = (ROOT / 'Makefile').read_text()
  for page in PAGES:
    named = [c[1] for c in commands(page) if c[0] == 'make']
    named += re.findall(r'`make (\w+)', (ROOT / page).read_text())
    for target in named:
      assert re.search(rf'^{target}:', makefile, re.M), target


def test_the_modules_that_are_named_in_passing_exist():
  for page in PAGES:
    text = (ROOT / page).read_text()
    names = re.findall(r'python -m ([a-z_.]+)[`\s]', text)
    if page == 'docs/performance.md':
      names += [
        f'benchmarks.{n}' for n in re.findall(r'^\| `(\w+)`', text, re.M)
      ]
    for name in names:
      assert importlib.util.find_spec(name), f'{page}: {name}'


def test_the_extras_that_are_named_exist():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  extras = project['optional-dependencies']
  for page in PAGES:
    for named in re.findall(r'\.\[([\w,]+)\]', (ROOT / page).read_text()):
      assert set(named.split(',')) <= extras.keys(), named
  assert extras['cuda'] == ['jax[cuda]']


def anchors(path):
  """What GitHub calls the headings of a page."""
  for heading in re.findall(r'^#+ (.*)$', path.read_text(), re.M):
    plain = re.sub(r'[^\w\- ]', '', heading.lower())
    yield plain.replace(' ', '-')


@pytest.mark.parametrize('page', PAGES)
def test_every_link_leads_somewhere(page):
  text = (ROOT / page).read_text()
  for target in re.findall(r'\]\(([^)\s]+)\)', text):
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
