"""The status of islands as metrics for Prometheus."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from selsync_jax.cluster.connection import host_port
from selsync_jax.config import ConfigError, RunError

try:
  import prometheus_client
  from prometheus_client import core, registry
except ModuleNotFoundError as error:
  raise ConfigError(
    f"--metrics: {error}; pip install 'selsync-jax[islands]'"
  ) from error

_Gauge, _Counter = core.GaugeMetricFamily, core.CounterMetricFamily

OF_ALL = (
  (_Gauge, 'present', 'islands', 'Islands that train.'),
  (_Gauge, 'expected', 'islands_expected', 'Islands that the run expects.'),
  (_Gauge, 'generation', 'generation', 'Times that islands came or went.'),
  (_Gauge, 'participation', 'participation_ratio', 'Share that trains.'),
  (_Counter, 'admitted', 'islands_admitted', 'Islands that came again.'),
  (_Counter, 'left', 'islands_left', 'Islands that left when asked to.'),
  (_Counter, 'ended', 'islands_ended', 'Islands that died or failed.'),
)
OF_EACH = (
  (_Gauge, 'step', 'island_step', 'The last step taken.'),
  (_Counter, 'averages', 'island_averages', 'Averages applied.'),
  (_Counter, 'aborts', 'island_aborts', 'Exchanges repeated.'),
  (_Counter, 'guesses', 'island_guesses', 'Votes not waited for.'),
  (_Counter, 'mistakes', 'island_mistakes', 'Steps repeated after a vote.'),
  (_Gauge, 'silent_seconds', 'island_silent_seconds', 'Since a sign of life.'),
  (_Counter, 'sent_bytes', 'island_sent_bytes', 'Of messages to others.'),
  (_Counter, 'received_bytes', 'island_received_bytes', 'Of their messages.'),
)
"""Kind, name in the status, name for Prometheus after `selsync_`, and help."""


class StatusCollector(registry.Collector):
  """Collector that Prometheus reads at every scrape."""

  def __init__(self, read: Callable[[], Mapping[str, Any]]):
    self._read = read

  def collect(self) -> Iterable[core.Metric]:
    found = self._read()
    for kind, field, name, about in OF_ALL:
      yield kind(f'selsync_{name}', about, value=found[field])
    for kind, field, name, about in OF_EACH:
      family = kind(f'selsync_{name}', about, labels=['island'])
      for island in found['islands']:
        if field in island:
          family.add_metric([island['name']], island[field])
      yield family


def serve(read: Callable[[], Mapping[str, Any]], host: str, port: int) -> str:
  """Serves a status as metrics, until the process ends; returns the address.

  Port 0 is a free one. Host `127.0.0.1` serves this host alone.

  Raises:
    RunError: if the port cannot be opened.
  """
  metrics = registry.CollectorRegistry()
  metrics.register(StatusCollector(read))
  try:
    server, _ = prometheus_client.start_http_server(
      port, host, registry=metrics
    )
  except OSError as error:
    line = (
      f'--metrics={host_port(host, port)}: cannot be opened: {error.strerror}'
    )
    raise RunError(line) from error
  return f'http://{host_port(host, server.server_port)}/metrics'
