"""Runs the snippets of README and docs as they stand there."""

import json
import os
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from configs import digits
import selsync_jax as ss
from selsync_jax.training import settings
from tests.support import live_runs
from tests.support.pages import blocks, PAGES

SNIPPETS = {
  f'{page}:{line}': text
  for page in PAGES
  for line, text in blocks(page, 'python')
}

# The snippets that train a run.
RUNS = {p: text for p, text in SNIPPETS.items() if 'run = ss.train(' in text}
QUICK = {p: text for p, text in SNIPPETS.items() if p not in RUNS}
ISLANDS = [p for p, text in QUICK.items() if 'ss.Island.join(' in text]
# Appended to a loop that has made its state.
KEYS = """
for leaf in jax.tree.leaves(state):
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    rows = jax.random.key_data(leaf).tolist()
    print(len(set(map(tuple, rows))), len(rows))
"""
LOOPS = {
  f'the keys of {place}': re.split(r'^step\b', text, flags=re.M)[0] + KEYS
  for place, text in SNIPPETS.items()
  if 'jax.random.fold_in' in text
}

# Runs snippets on four devices, each in its own namespace, and returns their
# output. The page of a run is not drawn; train_test.py does that.
SAY = """
import contextlib, io, json, sys, traceback, types
sys.modules['selsync_jax.report.run_page'] = types.SimpleNamespace(
  write=lambda runs, folder: folder / 'report.html'
)
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
def printed(short_run, tmp_path_factory):
  """The output of `QUICK` and `LOOPS`, in a folder with a short run."""
  folder = tmp_path_factory.mktemp('reader')
  (folder / 'runs').mkdir()
  (folder / 'runs' / 'digits-selsync').symlink_to(short_run.workdir)
  return say(QUICK | LOOPS, folder, '-W', 'error')


@pytest.fixture(scope='module')
def said(printed):
  """The output of each quick snippet."""
  return {place: printed[place] for place in QUICK}


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  """The output of each snippet that trains."""
  return say(RUNS, tmp_path_factory.mktemp('trains'), '-W', 'error')


def say(snippets, folder, *flags):
  """The output of each of these snippets."""
  done = live_runs.run(
    *(sys.executable, *flags, '-c', SAY),
    cwd=folder,
    env=os.environ | {'JAX_NUM_CPU_DEVICES': '4'},
    input=json.dumps(snippets),
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.mark.parametrize('snippet', QUICK)
def test_a_snippet_runs_as_it_stands(snippet, said):
  assert 'Traceback' not in said[snippet], said[snippet]
  assert said[snippet], 'shows nothing'


@pytest.mark.slow
@pytest.mark.parametrize('snippet', RUNS)
def test_a_snippet_that_trains_runs_as_it_stands(snippet, runs):
  assert 'Traceback' not in runs[snippet], runs[snippet]
  assert runs[snippet], 'shows nothing'


@pytest.mark.slow
def test_custom_data_is_read_from_everywhere(data_dir, tmp_path):
  snippets = {
    f'{line}': text for line, text in blocks('docs/your-own.md', 'py')
  }
  printed = say(snippets, tmp_path)
  assert [text.splitlines()[-1] for text in printed.values()] == [
    "{'train': 100, 'validation': 20, 'test': 30}",
    "{'train': 9, 'validation': 1, 'test': 10}",
    "{'train': 80, 'validation': 10, 'test': 10}",
  ]


def test_lines_for_a_custom_loop_run_in_one():
  lines = [text for _, text in blocks('docs/own-loop.md', 'py')]
  assert len(lines) == 5

  def worker(params):
    trigger = ss.every(2)
    params = {'lora': params, 'base': params}
    names = {
      **dict.fromkeys(('batch_stats', 'teacher'), params),
      **{'sync': jnp.bool(True), 'pair': optax.LookaheadParams(params, params)},
      **{'optax': optax, 'ss': ss, 'params': params, 'ema': params},
      'copies': ss.Leaves(),
      **{'trigger': trigger, 'opt_state': trigger.init(params)},
      'averager': ss.delayed(ss.mean(), 2),
    }
    for text in lines:
      exec(text, names)
      names['tx'].init(params)
    return names['ema']['base'], names['params']['lora']

  equal = jnp.ones((2, 3))
  for new in jax.vmap(worker, axis_name=ss.AXIS)(equal):
    np.testing.assert_array_equal(new, equal)


@pytest.mark.parametrize('page', ['docs/fine-tuning.md', 'docs/fields.md'])
def test_lines_for_a_config_are_accepted_in_one(page):
  for _, text in blocks(page, 'py'):
    config = digits.get_config('selsync')
    exec(text, {'config': config})
    settings.check(config)


@pytest.mark.parametrize(
  'page', ['docs/own-loop.md', 'docs/flax.md', 'docs/mesh.md']
)
def test_own_loops_synchronize_when_one_worker_asks_for_it(page, said):
  loops = [place for place in said if place.startswith(page)]
  loops = [place for place in loops if place not in ISLANDS]
  assert len(loops) >= 2
  for loop in loops:
    flags = re.findall('True|False', said[loop])
    if 'ss.every(5)' in SNIPPETS[loop]:
      assert flags == [*['False'] * 4, 'True'] * 2
    else:
      assert flags[0] == flags[6] == 'True' and 'False' in flags


@pytest.mark.parametrize('loop', ISLANDS)
def test_a_loop_on_islands_finds_the_weights(loop, said):
  weights = np.float32(re.findall(r'\d\.\d*', said[loop]))
  np.testing.assert_allclose(weights, np.ones(3), atol=0.15)


def test_own_loops_give_each_worker_keys_of_its_own(printed):
  keys = [printed[place].split() for place in LOOPS]
  assert sorted(keys) == [['2', '2']] * 2 + [['4', '4']] * 3


def test_output_that_a_comment_shows_is_printed(said):
  decides = [v for k, v in said.items() if k.startswith('docs/how')]
  assert decides == ['inf\n0.000\n0.100\n0.040\n']
  for place in said:
    for comment in re.findall(r'^print\(.*\n# (.*)$', SNIPPETS[place], re.M):
      assert comment in said[place]


@pytest.mark.slow
def test_a_fine_tuned_run_says_what_its_weights_are(runs):
  (page,) = (place for place in runs if place.startswith('docs/fine-tuning'))
  lines = re.findall('^# (.*)$', SNIPPETS[page], re.M)
  assert ' '.join(lines) in runs[page]


# An import hook that simulates an environment with only jax and optax.
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
  done = live_runs.run(
    *(sys.executable, '-c', WITHOUT + snippet),
    env=os.environ | {'JAX_NUM_CPU_DEVICES': '4'},
  )
  assert done.returncode == 0, done.stderr
  changes = [float(c) for c in done.stdout.strip(' []\n').split()]
  assert len(changes) == 4
  assert all(change >= 0 for change in changes)
