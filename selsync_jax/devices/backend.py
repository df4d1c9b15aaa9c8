"""Starts JAX on its devices, or says in one line why that is impossible."""

import contextlib
from importlib import metadata
import os
import re
import select
import signal
import sys
import warnings

import jax

from selsync_jax.config import ConfigError

_PATIENCE = 30.0  # Seconds for the trial; a flag is refused within 0.1 s.


def check_flags() -> None:
  """Raises `ConfigError` if XLA would abort this process for its flags.

  A child tries them, as XLA lets nobody catch that. Call this before JAX is
  used: a process may not fork later.
  """
  if not os.environ.get('XLA_FLAGS'):
    return
  source, sink = os.pipe()
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # Of threads; none of ours holds a lock.
    child = os.fork()
  if not child:
    _try_flags(sink)
  os.close(sink)
  said = b''
  with open(source, 'rb', buffering=0) as errors:
    while select.select([errors], [], [], _PATIENCE)[0]:
      if not (more := errors.read(2**16)):
        break
      said += more
    else:
      os.kill(child, signal.SIGKILL)  # It says nothing about the flags.
      said = b''
  _, status = os.waitpid(child, 0)
  if status and said:
    text = said.decode(errors='replace')
    reason = re.search(r'\] (.*)', text) or re.search(r'(.*)', text)
    raise ConfigError(f'XLA_FLAGS: {reason[1] if reason else text}')


def _try_flags(sink: int) -> None:
  """What the child does: start JAX, with its errors into a pipe, and end."""
  signal.set_wakeup_fd(-1)  # The parent's.
  os.dup2(sink, 2)
  with contextlib.suppress(BaseException):
    jax.config.update('jax_platforms', 'cpu')
    jax.devices()
  os._exit(0)


def start(device: str = 'auto') -> None:
  """Starts JAX's backend.

  Prints a line if JAX falls back to the CPU although it has a plugin for CUDA.

  Args:
    device: `cpu`, `gpu` or `tpu`; or `auto`, which leaves the choice to JAX.

  Raises:
    ConfigError: if there is no backend, as with `JAX_PLATFORMS=cuda` without a
      GPU, or if JAX has started on another device.
  """
  platforms = os.environ.get('JAX_PLATFORMS', '')
  if device == 'cpu':
    jax.config.update('jax_platforms', device)
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:  # Without words for cuda.
    reason = _one_line(error) or 'there is no such device'
    raise ConfigError(
      f'JAX_PLATFORMS={platforms}: JAX cannot start: {reason}'
    ) from error
  started = jax.default_backend()
  if device not in ('auto', started):
    raise ConfigError(
      f'config.device={device}: JAX has started on {started}: {_lacks(device)}'
    )
  plugins = metadata.entry_points(group='jax_plugins')
  if (device, started) == ('auto', 'cpu') and not platforms:
    for plugin in (p.name for p in plugins if 'cuda' in p.name):
      print(
        f'JAX runs on the CPU, although it has the plugin {plugin}: '
        f'{_lacks("gpu")}; with --config.device=gpu it must not',
        file=sys.stderr,
      )


def _lacks(device: str) -> str:
  """Why JAX has not started on a device."""
  try:
    jax.devices(device)
  except RuntimeError as error:
    return _one_line(error)
  return 'JAX_PLATFORMS names another one first'


def _one_line(error: Exception) -> str:
  return ' '.join(str(error).split())
