"""Virtual clusters: computation times per worker and step, and the network.

Each kind of cluster is a function whose keyword arguments are fields of
`config.virtual_cluster`. Times are a pure function of worker and step: a
simulation can be replayed, and two methods run on the same cluster.

References:
  Li et al., `Taming Unbalanced Training Workloads in Deep Learning with Partial
  Collective Operations`, PPoPP 2020 (eager-SGD: `delays`, `skewed`).
"""

from collections.abc import Callable, Mapping, Sequence
import csv
import functools
import math
import pathlib
from typing import Any, NamedTuple
import zlib

from jaxtyping import Float64, Int64
import numpy as np

from selsync_jax.config import (
  bind,
  config_errors,
  ConfigError,
  Index,
  NonNegative,
  Positive,
  set_fields,
)
from selsync_jax.data import draws
from selsync_jax.sync import network as networks
from selsync_jax.sync.network import Network


class VirtualCluster(NamedTuple):
  """Workers and the network between them."""

  seconds: Callable[[int, int], float]  # Of a worker's step.
  network: Network
  files: dict[str, Any]  # The checksum of the trace, if there is one.
  ahead: bool = False  # Whether the next step begins during a vote.


Table = Callable[
  [Int64[np.ndarray, '1 workers'], Int64[np.ndarray, 'steps 1']], Any
]
"""`table(workers, steps)`: seconds, broadcast to [steps, workers]."""

_STREAM = 0xC1  # Makes these draws independent of all others of a seed.
_STEPS = 64  # Computed together, which is faster than one by one.


class Base(NamedTuple):
  """The fields that all kinds of cluster share."""

  workers: int
  step_seconds: float  # For a gradient, on a worker at full speed.
  steps: int  # A worker's in the run, on average.
  seed: int

  def uniform(self, *words: Any) -> Float64[np.ndarray, '...']:
    """Returns numbers in (0, 1), a function of seed and words."""
    return (draws.bits(self.seed, _STREAM, *words) // 2**11 + 0.5) / 2**53


def constant(base: Base) -> Table:
  """Gives all workers the same speed at every step."""
  return lambda worker, step: base.step_seconds


def factors(base: Base, *, factors: Sequence[Positive]) -> Table:
  """Gives each worker its own speed.

  Args:
    factors: a factor for each worker's `step_seconds`; 2 is half speed.
  """
  if len(factors) != base.workers:
    raise ValueError(
      f'factors={tuple(factors)}: needs one number for each of '
      f'{base.workers} workers, got {len(factors)}'
    )
  table = base.step_seconds * np.array(factors)
  return lambda worker, step: table[worker]


def lognormal(base: Base, *, sigma: NonNegative = 0.3) -> Table:
  """Draws the time of every step from a lognormal distribution.

  Args:
    sigma: standard deviation of the logarithm.
  """

  def seconds(worker, step):
    u, v = (base.uniform(worker, step, i) for i in range(2))
    normal = np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * v)
    return base.step_seconds * np.exp(sigma * normal - sigma**2 / 2)

  return seconds


def delays(base: Base, *, late: Index = 1, delay: NonNegative = 0.3) -> Table:
  """Delays some random workers at each step (eager-SGD, section 6).

  Args:
    late: k, how many of the N workers are late at each step.
    delay: the delay in seconds.
  """
  if late > base.workers:
    raise ValueError(f'late={late}: must be in [0, {base.workers}] (workers)')

  def seconds(worker, step):
    turn = base.uniform(worker, step).argsort(axis=1).argsort(axis=1)
    return base.step_seconds + delay * (turn < late)

  return seconds


def skewed(
  base: Base, *, low: NonNegative = 0.05, high: NonNegative = 0.4
) -> Table:
  """Delays all workers, by linearly increasing delays that rotate.

  Worker i is late by `low + (high - low) r / (N - 1)` seconds, r = (i + step)
  mod N (eager-SGD's severe imbalance: 50 to 400 ms).

  Args:
    low: seconds of the smallest delay.
    high: seconds of the largest delay.
  """
  if high < low:
    raise ValueError(f'high={high}: must be at least low={low}')

  def seconds(worker, step):
    share = (worker + step) % base.workers / max(1, base.workers - 1)
    return base.step_seconds + low + (high - low) * share

  return seconds


def trace(base: Base, *, trace: str) -> Table:
  """Reads measured times.

  Args:
    trace: a CSV file of seconds, without a header; a row per step, a column per
      worker. A fast worker may need more rows than the run has steps.
  """
  try:
    with pathlib.Path(trace).open(newline='') as file:
      cells = [row for row in csv.reader(file) if row]
  except OSError as error:
    raise ValueError(f'trace={trace}: {error.strerror}') from error
  rows = []
  for line, row in enumerate(cells, 1):
    try:
      rows.append([float(cell) for cell in row])
    except ValueError as error:
      raise ValueError(f'trace={trace}: row {line}: {error}') from error
    if len(row) != base.workers or not all(0 < x < math.inf for x in rows[-1]):
      raise ValueError(
        f'trace={trace}: row {line} must have {base.workers} numbers above 0 '
        f'(workers), got {",".join(row)}'
      )
  if len(rows) < base.steps:
    raise ValueError(
      f'trace={trace}: needs a row for each of {base.steps} steps, got '
      f'{len(rows)}'
    )
  padded = np.array([*rows, [math.nan] * base.workers])
  return lambda worker, step: padded[np.minimum(step, len(rows)), worker]


_KINDS = constant, factors, lognormal, delays, skewed, trace
COMPUTE: dict[str, Callable[..., Table]] = {f.__name__: f for f in _KINDS}


def _by_step(table: Table, workers: int) -> Callable[[int, int], float]:
  """Returns `seconds(worker, step)`, computed in blocks of steps."""

  @functools.lru_cache(maxsize=64)
  def block(index):
    step = np.arange(index * _STEPS, (index + 1) * _STEPS)[:, None]
    rows = table(np.arange(workers)[None], step)
    return np.broadcast_to(rows, (_STEPS, workers)).tolist()

  def seconds(worker, step):
    found = block(step // _STEPS)[step % _STEPS][worker]
    if math.isnan(found):
      raise ConfigError(
        f'config.virtual_cluster.trace: has no row {step + 1}, and worker '
        f'{worker} is fast enough to need it'
      )
    return found

  return seconds


def create_cluster(
  fields: Mapping[str, Any], *, workers: int, steps: int, seed: int
) -> VirtualCluster:
  """Makes the cluster of a run from its `config.virtual_cluster`.

  The fields are `compute`, a name in `COMPUTE`; `step_seconds`; `bandwidth`
  (`200Mbit`; `None` is infinite); `latency` (`1ms`); `ahead`; and the kind's
  own fields. Fields of other kinds must be `None`.
  """
  options = set_fields(fields)
  ahead = options.pop('ahead', False)
  step_seconds, bandwidth, latency = (
    options.pop(name, None) for name in ('step_seconds', 'bandwidth', 'latency')
  )
  make = bind(COMPUTE, options, 'virtual_cluster', key='compute')
  table = make(Base(workers, step_seconds, steps, seed))
  with config_errors('virtual_cluster.bandwidth'):
    bits = math.inf if bandwidth is None else networks.bandwidth(bandwidth)
  with config_errors('virtual_cluster.latency'):
    network = Network(workers, bits, networks.latency(latency))
  trace = options.get('trace')
  crc = trace and zlib.crc32(pathlib.Path(trace).read_bytes())
  files = {'trace': f'{crc:08x}'} if trace else {}
  return VirtualCluster(_by_step(table, workers), network, files, ahead)
