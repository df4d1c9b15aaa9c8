"""The entry point of all commands: `selsync`, or `python -m selsync_jax`.

A mistake in flags or config, and a run that fails, end with one line instead
of a stack trace. Exit codes: 0, done; 1, the run failed; 2, a mistake in flags
or config; 75, stopped by a signal, and the same command continues; 130, stopped
by a signal before any work started.
"""

import atexit
from collections.abc import Generator, Sequence
import contextlib
import importlib
import importlib.util
import logging
import multiprocessing
import os
import pathlib
import platform
import signal
import sys
import tempfile
from typing import NoReturn

from selsync_jax import config, user_errors
from selsync_jax.cluster import signals
from selsync_jax.commands import COMMANDS, forks
from selsync_jax.runs import output

USAGE = 'usage: selsync COMMAND [ARGUMENT ...]'
INSTALL = "commands need pip install 'selsync-jax[train]'"
_owned: list[str] = []  # The program's name, if it owns this process.


def main(arguments: Sequence[str] | None = None) -> None:
  """Runs the command of a command line, by default this process's."""
  arguments = sys.argv[1:] if arguments is None else arguments
  if arguments[:1] == [forks.FLAG]:
    _prepare_libraries()
    from selsync_jax.runs import provenance

    provenance.origin()  # The forks remember what they have imported.
    arguments = forks.serve(arguments[1:])  # Returns in each fork.
  own_process(' '.join(arguments[:1]))
  run_command(arguments)


def own_process(program: str) -> None:
  """Makes this process handle a program's output and signals."""

  def stop(number):
    signals.stop(signals.STOPPED, f'stopped by {signal.Signals(number).name}')

  _owned.append(program)
  output.own()
  signals.name(program)
  signals.Handler(stop).start()  # Until the process ends.
  atexit.register(signals.ignore)  # The first registered is the last called.


def run_command(arguments: Sequence[str]) -> None:
  """Runs a command with its arguments, and exits if it fails."""
  name, *rest = arguments or ['--help']
  if name in ('--help', '-h'):
    lines = [f'  {name:8}  {does}' for name, does in COMMANDS.items()]
    end = 'selsync COMMAND --help lists its flags.'
    print(USAGE, '', *lines, '', end, sep='\n')
    return
  if name not in COMMANDS:
    _fail(f'selsync: {name!r} is not one of {", ".join(COMMANDS)}', 2)
  with command(name):
    # Only now, so that no command loads what another one needs.
    importlib.import_module(f'selsync_jax.commands.{name}').main(rest)


@contextlib.contextmanager
def command(program: str) -> Generator[None]:
  """Prepares the libraries for a command, and exits if it fails.

  Error messages start with the word `program`.
  """
  try:
    _prepare_libraries()
    yield
  except (config.ConfigError, config.RunError) as error:
    if _owned and isinstance(error, config.LostError):
      _start_again(f'{program}: {error}; starts again')
    _fail(f'{program}: {error}', error.code)
  except config.Stopped as error:
    line = f'{program}: {error}; {signals.resumes()}'
    _fail(line, signals.RESUMABLE)
  except OSError as error:  # No such folder, no space left, no such host.
    _fail(f'{program}: {user_errors.of_file(error)}', config.RunError.code)
  except user_errors.RAISED as error:
    if isinstance(error, SystemExit) and not user_errors.is_users(error):
      raise  # This package raised it.
    has_train = importlib.util.find_spec('ml_collections')  # The extra.
    if isinstance(error, ModuleNotFoundError) and not has_train:
      _fail(f'{program}: {error.name} is not installed; {INSTALL}', 2)
    file = user_errors.keep(
      error, pathlib.Path(tempfile.mkdtemp()), 'error.txt'
    )
    line = user_errors.one_line(error, 'selsync_jax')
    _fail(f'{program}: {line}; the whole traceback is in {file}', 1)


def _start_again(line: str) -> NoReturn:
  """Restarts the command in this process; it resumes its run."""
  for child in multiprocessing.active_children():
    child.terminate()
  sys.stdout.flush()
  print(line, file=sys.stderr, flush=True)
  again = [sys.executable, *sys.orig_argv[1:], '--norestart']
  os.execv(sys.executable, again)


def _fail(line: str, code: int) -> NoReturn:
  if _owned:  # A library's thread may wait forever, or print at the end.
    sys.stdout.flush()
    signals.end(code, line)
  print(line, file=sys.stderr)
  sys.exit(code)


def _prepare_libraries() -> None:
  # Config files import modules from the current folder. Unlike `python -m`, a
  # console script does not search it.
  if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())
  # TensorFlow only reads data here; its messages about kernels are noise.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
  # Otherwise TensorFlow imports Keras and scikit-learn, which takes a second.
  os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
  # JAX also raises every error that it logs about callbacks.
  for module in ('debugging', 'callback'):
    logging.getLogger(f'jax._src.{module}').setLevel(logging.CRITICAL)
  _keep_programs()


def _keep_programs() -> None:
  """Makes JAX cache compiled programs, which halves the time to the first step.

  Each machine has its own folder, because programs are compiled for its
  processor.
  """
  try:
    caches = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
    folder = pathlib.Path(caches, 'selsync_jax', platform.node())
    folder.mkdir(parents=True, exist_ok=True)
  except (OSError, RuntimeError):  # The user may have no home.
    return  # Without a folder, JAX would warn about every program.
  os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(folder))
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.1')


if __name__ == '__main__':
  main()
