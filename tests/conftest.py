"""One process, 16 virtual devices, shapes checked, every warning an error.

All files of a session of pytest lie in one temporary folder. With xdist the
controller makes the folder; its workers, and every process that a test starts,
inherit it by the environment. So each program is compiled once, each data set
is prepared once and nothing is written into the user's home. Only the programs
compiled by pytest itself are kept, in pytest's cache, so the next session need
not compile them.
"""

import contextlib
import gc
import io
import os
import pathlib
import platform
import signal
import sys
import tempfile
import time
import types
import zipfile

if 'PYTEST_XDIST_WORKER' not in os.environ:
  _FOLDER = tempfile.TemporaryDirectory(prefix='selsync-tests-')
  os.environ['SELSYNC_TESTS'] = _FOLDER.name

_SESSION = os.environ['SELSYNC_TESTS']
os.environ['HOME'] = f'{_SESSION}/home'
os.environ['HYPOTHESIS_STORAGE_DIRECTORY'] = f'{_SESSION}/hypothesis'
os.environ['PYTHONPATH'] = os.path.dirname(os.path.dirname(__file__))
os.environ['JAX_COMPILATION_CACHE_DIR'] = f'{_SESSION}/compiled'
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'
# jaxlib 0.10 hangs on few cores unless its pool is larger. If workers do wait
# for each other in vain, a test should fail within a minute.
os.environ['PJRT_NPROC'] = '16'
os.environ['XLA_FLAGS'] = (
  os.environ.get('XLA_FLAGS', '')
  + ' --xla_cpu_collective_call_terminate_timeout_seconds=60'
)
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'
# Runs connect without the environment's proxy, and this one does not exist.
os.environ.update(grpc_proxy='http://127.0.0.1:9')
os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'
os.environ['TF_USE_LEGACY_KERAS'] = '1'
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['WANDB_MODE'] = 'offline'  # Tests need no network.
# Deprecated calls are also errors in the processes that tests start.
os.environ['PYTHONWARNINGS'] = 'error::DeprecationWarning,error::FutureWarning'
# A shell lets its background processes ignore Ctrl-C, and `nohup` lets them
# ignore a closed terminal; the processes that tests interrupt inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

import hypothesis
import jax
import jaxtyping
import numpy as np
import pytest

from tests.support import live_runs
from tests.support import small_disk as small_disks
from tests.support.session import (
  check_public_signatures,
  make_once,
  ROOT,
  SESSION,
)

# A machine may be busy: no test fails because it takes long.
hypothesis.settings.register_profile('untimed', deadline=None)
hypothesis.settings.load_profile('untimed')

check_public_signatures()

# Tracing makes many long-lived objects. Searching them for cycles at Python's
# usual rate takes a tenth of the tests' time.
gc.set_threshold(200_000, 50, 100)

jax.config.update('jax_num_cpu_devices', 16)
jax.config.update('jax_numpy_rank_promotion', 'raise')


def pytest_configure(config):
  """Keeps compiled programs for two weeks; `pytest --cache-clear` drops them.

  Processes that tests start use the session's folder: a test may kill one while
  it writes, and half a program would stay in the cache.
  """
  kept = config.cache.mkdir(f'compiled-{platform.node()}')
  if not hasattr(config, 'workerinput'):  # Xdist's workers start later.
    for path in kept.iterdir():
      if path.stat().st_mtime < time.time() - 14 * 24 * 3600:
        path.unlink()
  jax.config.update('jax_compilation_cache_dir', str(kept))


collect_ignore = ['support']  # No tests; some of it imports torch.
# Pytest looks for doctests in modules, but several have this one's name.
collect_ignore_glob = ['conftest.py', '*/conftest.py']


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
  """Reduces a failed check of shapes to our own lines and the mistake.

  Otherwise hundreds of lines of jax and of the checkers come first.
  """
  report = yield
  error = call.excinfo
  if error and isinstance(error.value, jaxtyping.TypeCheckError):
    own = error.traceback.filter(
      lambda entry: 'site-packages' not in entry.path.parts
    )
    report.longrepr = error.getrepr(
      style='short', chain=False, tbfilter=lambda _: own
    )
  return report


@pytest.fixture
def refused(capsys):
  """Runs a command of `selsync` that must fail; returns its one line."""
  from selsync_jax.__main__ import run_command

  def run(*arguments, code=2):
    with pytest.raises(SystemExit, match=f'^{code}$'):
      run_command([*map(str, arguments)])
    (line,) = capsys.readouterr().err.splitlines()
    return line

  return run


@pytest.fixture(params=['pmap', 'vmap'])
def mapper(request):
  """Both ways of running the workers."""
  return request.param


def _files_of_checkout() -> set[pathlib.Path]:
  """Files of the checkout, without caches and the tools' own files."""
  found = set()
  for folder, folders, files in os.walk(ROOT):
    folders[:] = [
      name
      for name in folders
      if not name.startswith(('.', '__pycache__'))
      and not name.endswith('.egg-info')
    ]
    found.update(pathlib.Path(folder, name) for name in files)
  return found


@pytest.fixture(scope='session', autouse=True)
def writes_stay_in_temporary_folders():
  """Fails the last test if any left a file in the checkout or at home."""
  before = _files_of_checkout()
  yield
  new = sorted(map(str, _files_of_checkout() - before))
  assert not new, f'written into the checkout during the tests: {new}'
  data = SESSION / 'home' / 'tensorflow_datasets'
  assert not data.exists(), f'prepared at home: {sorted(data.iterdir())}'


@pytest.fixture(scope='session')
def data_dir():
  """The TFDS data directory of all tests; it is empty.

  Processes started from now on find it by the environment.
  """
  folder = str(make_once('tfds', lambda folder: None))
  os.environ['TFDS_DATA_DIR'] = folder
  return folder


@pytest.fixture(scope='session', autouse=True)
def small_models():
  """Registers models that XLA compiles quickly, such as `perceptron`."""
  from tests.support import perceptron

  with perceptron.registered():
    yield


@pytest.fixture(autouse=True)
def registrations_are_forgotten():
  """Forgets what a test registers when it ends."""
  from tests.support import own_code

  with own_code.forgotten():
    yield


WIKITEXT = {
  'train': 'The cat sat .\n\nThe dog <unk> , a cat !\n' * 60,
  'valid': 'The cat saw a bird .\n' * 40,
  'test': 'A dog sat !\n' * 40,
}


def _prepare_archives(folder):
  from tests.support import photographs

  manual = folder / 'downloads' / 'manual'
  manual.mkdir(parents=True)
  with zipfile.ZipFile(manual / 'wikitext-103-v1.zip', 'w') as archive:
    for split, text in WIKITEXT.items():
      archive.writestr(f'wikitext-103/wiki.{split}.tokens', text)
  rng = np.random.default_rng(0)
  photographs.prepare(
    *(folder, lambda: photographs.jpeg(rng, *rng.integers(20, 60, 2))),
    **{'labels': 6, 'each': 34, 'validation': 12, 'shards': 5},
  )


@pytest.fixture(scope='session')
def archives_dir():
  """A TFDS data directory with small archives in their official layout.

  ImageNet is prepared from its own, in five shards.
  """
  return str(make_once('archives', _prepare_archives))


@pytest.fixture(scope='session')
def left_alone(data_dir):
  """`left_alone(method, processes)`: the folder of an undisturbed run.

  It is a run of `live_runs.command` that keeps all its checkpoints.
  """
  del data_dir  # The processes find it by the environment.

  def run(method, processes):
    name = f'left_alone-{method}-{processes}'

    def make(folder):
      flag = '--config.checkpoint.keep=99'
      live_runs.finish(live_runs.command(method, processes, folder, flag))

    return make_once(name, make)

  return run


def _run(name, train):
  """The output and the folder of a run; once in a session.

  `train(workdir)` returns what the run prints on stdout and on stderr.
  """

  def make(folder):
    for stream, text in zip(STREAMS, train(folder / 'digits'), strict=True):
      (folder / stream).write_text(text)

  folder = make_once(name, make)
  texts = {stream: (folder / stream).read_text() for stream in STREAMS}
  return types.SimpleNamespace(workdir=folder / 'digits', **texts)


STREAMS = 'stdout', 'stderr'


@pytest.fixture(scope='session')
def default_run(data_dir):
  """The default run of `python train.py`, for tests that are slow."""
  del data_dir  # The process finds it by the environment.

  def train(workdir):
    flag = f'--workdir={workdir}'
    done = live_runs.run(sys.executable, ROOT / 'train.py', flag)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr

  return _run('default', train)


@pytest.fixture(scope='session')
def short_run(data_dir):
  """The default run, shortened to 20 steps, two epochs, in this process."""
  del data_dir  # Found by the environment.
  fields = {'steps': 20, 'schedule.warmup_epochs': 1.0}

  def train(workdir):
    from selsync_jax.commands.train import train

    with (
      contextlib.redirect_stdout(io.StringIO()) as out,
      contextlib.redirect_stderr(io.StringIO()) as err,
    ):
      train('digits', workdir, fields=fields)
    return out.getvalue(), err.getvalue()

  return _run('short', train)


@pytest.fixture
def no_files(monkeypatch):
  """Pages without their figures' files, which take most of the time."""
  from selsync_jax.report import image_files

  monkeypatch.setattr(
    image_files, 'write', lambda figures, out, **_: out.mkdir(exist_ok=True)
  )


@pytest.fixture
def short_text(monkeypatch):
  """Scores on Python's text use its small files: other files take long."""
  from selsync_jax.data.sources import text

  every = text.files_of

  def files_of(split):
    return [
      path
      for path in every(split)
      if split == 'train' or path.stat().st_size < 10_000
    ]

  monkeypatch.setattr(text, 'files_of', files_of)


@pytest.fixture
def small_disk(tmp_path):
  """A disk in `tmp_path`, see `tests.support.small_disk`."""
  with small_disks.small_disk(tmp_path) as disk:
    yield disk
