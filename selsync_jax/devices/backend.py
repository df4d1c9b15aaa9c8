"""Starts JAX on its devices, or explains in one line why it cannot."""

from collections.abc import Callable
import contextlib
import ctypes
from importlib import metadata
import os
import socket
import sys

import jax

from selsync_jax import user_errors
from selsync_jax.cluster import processes
from selsync_jax.cluster.processes import Cluster
from selsync_jax.config import ConfigError
from selsync_jax.devices import mappers

# From malloc.h, each with the largest value that the manual of mallopt allows.
_TRIM_THRESHOLD = -1, 2**31 - 1
_MMAP_THRESHOLD = -3, 32 * 2**20


def start(
  device: str = 'auto',
  join: Callable[[], Cluster] = Cluster,
  *,
  workers: int = 0,
  mapper: str = 'auto',
  data: int = 1,
  fsdp: int = 1,
) -> Cluster:
  """Starts JAX; every command calls this once, before it uses JAX.

  It prints a line if JAX falls back to the CPU although it has a plugin for
  CUDA. If JAX cannot start here, the processes that `join` connects also learn
  of it. A CPU gets virtual devices for the workers, if their mapper needs them.

  Raises:
    ConfigError: if there is no backend, as with `JAX_PLATFORMS=cuda` without a
      GPU; if JAX has started on another device; or if the processes cannot
      share the workers evenly.
  """
  # jaxlib 0.10 hangs on a machine with few cores unless its pool is larger.
  os.environ.setdefault('PJRT_NPROC', '16')
  with contextlib.ExitStack() as stack:
    cluster = join()
    stack.push(cluster)
    if workers and mappers.needs_devices(mapper):
      make_devices(workers, cluster.processes, data, fsdp)
    _start_backend(device)
    stack.pop_all()
  if jax.default_backend() == 'cpu':
    keep_memory()
  return cluster


def make_devices(
  workers: int, processes: int = 1, data: int = 1, fsdp: int = 1
) -> None:
  """Gives a CPU virtual devices for this process's share of the workers.

  It has no effect on other devices. Call it before JAX is used. The processes
  must be able to share the devices evenly.
  """
  inside = data * fsdp
  devices = workers * inside
  if devices % processes or (workers % processes and processes % workers):
    raise ConfigError(
      f'config.workers={workers}: {processes} processes cannot evenly share '
      f'{devices} devices, {inside} for each worker'
    )
  jax.config.update('jax_num_cpu_devices', devices // processes)


def check(device: str) -> None:
  """Raises `ConfigError` if JAX has started on another device."""
  started = jax.default_backend()
  if device not in ('auto', started):
    raise ConfigError(
      f'config.device={device}: JAX has started on {started}: {_lacks(device)}'
    )


def memory() -> int:
  """Returns a device's memory in bytes; for a CPU, the host's memory."""
  stats = jax.local_devices()[0].memory_stats() or {}
  host = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  return stats.get('bytes_limit', host)


def keep_memory() -> None:
  """Makes the C library keep most of a step's freed memory for the next step.

  By default glibc returns free memory at the end of its heap to the kernel, and
  each step faults its arrays in again, page by page. Other C libraries are not
  changed.
  """
  mallopt = getattr(ctypes.CDLL(None), 'mallopt', lambda *_: 0)
  mallopt(*_MMAP_THRESHOLD)
  mallopt(*_TRIM_THRESHOLD)


def _start_backend(device: str) -> None:
  """Starts JAX's backend; raises `ConfigError` if there is none."""
  platforms = os.environ.get('JAX_PLATFORMS', '')
  if device == 'cpu':
    jax.config.update('jax_platforms', device)
  try:
    jax.devices()
  # For CUDA, JAX raises an AssertionError without a message.
  except (RuntimeError, AssertionError) as error:
    host = socket.gethostname()
    if processes.count() > 1 and not _resolves(host):
      raise ConfigError(
        f'host name {host!r}: does not resolve; processes find each other by '
        'host name, so add this one to /etc/hosts'
      ) from error
    reason = user_errors.reason(error) or 'there is no such device'
    where = f'JAX_PLATFORMS={platforms}: ' if platforms else ''
    raise ConfigError(f'{where}JAX cannot start: {reason}') from error
  check(device)
  plugins = metadata.entry_points(group='jax_plugins')
  is_cpu = jax.default_backend() == 'cpu'
  if device == 'auto' and is_cpu and not platforms:
    for plugin in (p.name for p in plugins if 'cuda' in p.name):
      print(
        f'JAX runs on the CPU, although it has the plugin {plugin}: '
        f'{_lacks("gpu")}; --config.device=gpu makes this an error',
        file=sys.stderr,
      )


def _resolves(host: str) -> bool:
  try:
    return bool(socket.getaddrinfo(host, None))
  except OSError:
    return False


def _lacks(device: str) -> str:
  """Returns why JAX has not started on a device."""
  try:
    jax.devices(device)
  except RuntimeError as error:
    return user_errors.reason(error)
  return 'JAX_PLATFORMS names another device first'
