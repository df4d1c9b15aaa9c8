"""Serve the coordinator of islands, workers in separate programs.

  selsync meet --islands=4 --host=10.0.0.1 --port=7070

prints an invitation, which each island needs to join, and then each island that
joins or ends. The coordinator holds no weights. It serves until a signal
stops it; islands that have ended may meet there again. `--keep=FILE` stores its
secrets, so that the invitation is the same after a restart. `selsync status`
and, with `--metrics=PORT`, Prometheus show what the islands are doing.
"""

import argparse
from collections.abc import Sequence
import contextlib
import ipaddress
import pathlib
import resource
import threading
import time

from selsync_jax.commands import flags
from selsync_jax.config import ConfigError, Count, Positive, RunError


def add_flags(line: flags.CommandLine, about: str) -> None:
  """Adds flags for the number of islands, see `least`, and for the log."""
  line.flag('islands', about, flags.of(Count))
  about = 'Smallest number of islands that may train. Default: all.'
  line.flag('minimum', about, flags.of(Count))
  about = 'Seconds that --minimum islands wait for busy islands. '
  about += 'Default: no limit.'
  line.flag('grace', about, flags.of(Positive))
  about = 'File that gets a line of JSON when an island joins or leaves.'
  line.flag('log', about, pathlib.Path)


def given(options: argparse.Namespace) -> list[str]:
  """Returns the arguments that set these flags."""
  names = 'islands', 'minimum', 'grace', 'log'
  values = [(name, getattr(options, name)) for name in names]
  return [f'--{name}={value}' for name, value in values if value is not None]


def least(options: argparse.Namespace) -> int:
  """Returns the smallest number of islands that may train."""
  islands, minimum = options.islands or 0, options.minimum
  if minimum and minimum > islands:
    raise ConfigError(
      f'--minimum={minimum}: must be at most --islands, which is '
      f'{options.islands or "missing"}'
    )
  if options.grace and (minimum or islands) == islands:
    raise ConfigError(
      f'--grace={options.grace:g}: only valid with a --minimum below --islands'
    )
  return minimum or islands


def _is_address(host: str) -> bool:
  with contextlib.suppress(ValueError):
    return bool(ipaddress.ip_address(host))
  return False


def main(arguments: Sequence[str]) -> None:
  """Prints the invitation, and then each island that joins or ends."""
  line = flags.CommandLine('meet')
  add_flags(line, 'Number of islands.')
  line.flag('host', 'Name or address of this host, as islands reach it.')
  line.flag('port', 'Port to listen at; 0 is a free one.', flags.port, '7070')
  about = 'Seconds until a run starts with fewer islands, if --minimum allows.'
  line.flag('timeout', about, flags.of(Positive), '600')
  about = 'File of the secrets, created if it does not exist.'
  line.flag('keep', about, pathlib.Path)
  about = (
    'Port to serve metrics at, for Prometheus; 0 is a free one. Only this host '
    'can read them, unless an address comes before it: 0.0.0.0:9464.'
  )
  line.flag('metrics', about, flags.address)
  options = line.parse(arguments)
  if options.islands is None:
    raise ConfigError('--islands=NUMBER is missing')
  minimum = least(options)
  host = (options.host or '').strip('[]')
  if not host or '/' in host or (':' in host and not _is_address(host)):
    raise ConfigError(
      f'--host={options.host or ""}: must be a name or an IP address'
    )
  from selsync_jax.islands import credentials, server  # Import cryptography.

  def say(text):
    print(time.strftime('%H:%M:%S'), text, flush=True)

  if options.log:
    with options.log.open('a'):
      pass  # It can be written.

  try:
    point = server.CoordinatorServer(
      *(options.islands, host, options.port, options.timeout, say),
      minimum=minimum,
      grace=options.grace,
      credentials=options.keep and credentials.kept_credentials(options.keep),
      log=options.log,
    )
  except OSError as error:
    raise RunError(
      f'--port={options.port}: this port cannot be opened'
    ) from error
  # Each connection between islands that it passes on takes two files.
  _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
  lines = [str(point.invitation)]
  if options.metrics is not None:
    from selsync_jax.islands import metrics  # Imports prometheus_client.

    address = metrics.serve(point.status, *options.metrics)
    lines.append(f'metrics at {address}')
  print('\n'.join(lines), flush=True)
  threading.Event().wait()
