"""Which devices the workers run on, checked before any work."""

from typing import Any

import jax

from selsync_jax.config import ConfigError

ONE_DEVICE = ('vmap', 'map')  # Mappers of all workers to one device.


def make_devices(workers: int, processes: int = 1) -> None:
  """Gives a CPU one device for each worker of this process.

  Other machines keep the devices they have. Call it before JAX is used.

  Raises:
    ConfigError: if the workers cannot be divided evenly.
  """
  if workers % processes:
    raise ConfigError(
      f'config.workers={workers}: must be a multiple of the number of '
      f'processes, {processes}'
    )
  jax.config.update('jax_num_cpu_devices', workers // processes)


def describe() -> dict[str, Any]:
  """The devices of all processes, as JSON can hold them."""
  return {
    'platform': jax.default_backend(),
    'kind': jax.devices()[0].device_kind,
    'count': jax.device_count(),
    'processes': jax.process_count(),
  }


def check_devices(workers: int, mapper: str) -> None:
  """Raises `ConfigError` if the devices cannot hold `workers`."""
  processes, devices = jax.process_count(), jax.device_count()
  if mapper in ONE_DEVICE and processes > 1:
    raise ConfigError(
      f'config.mapper={mapper}: needs a single process, got {processes}'
    )
  if mapper == 'pmap' and devices < workers:
    raise ConfigError(
      f'config.workers={workers}: mapper pmap needs one device per worker, and '
      f'there are {devices} ({jax.default_backend()}); '
      'use fewer workers, or --config.mapper=auto'
    )
  if processes > 1 and devices != workers:
    raise ConfigError(
      f'config.workers={workers}: must equal the number of devices, '
      f'{devices}, with {processes} processes'
    )
