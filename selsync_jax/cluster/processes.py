"""The processes of a run: how they connect, and how they end.

A process holds the workers of its own devices. Workers are numbered in the
order of the processes.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import json
import math
import os
import pathlib
import socket
import sys
import time
from typing import Any, NamedTuple
import warnings

import jax
from jax._src import (
  clusters,
  distributed,  # Knows the process count before any backend.
  xla_bridge,
)
from jax.experimental import multihost_utils
import numpy as np

from selsync_jax import config, user_errors
from selsync_jax.cluster import connection, proxy, world
from selsync_jax.cluster.preemption import Agreement, Preemption
from selsync_jax.cluster.world import World

_entered: list['Cluster'] = []  # At most one.
_FIRST, _MOST = 1 << 10, 1 << 26  # Bytes of a broadcast.
_ALONE = 'set JAX_NUM_PROCESSES=1 to run alone'


class Cluster:
  """The processes of a run, seen from one of them, as returned by `join`.

  As a context manager, it reports to the others how its body ended. `sys.exit`
  does not count as a failure.

  Attributes:
    process: the index of this process.
    processes: the number of processes.
    world: the connections to the others, if any.
  """

  def __init__(
    self, process: int = 0, processes: int = 1, world: World | None = None
  ):
    self.process, self.processes, self.world = process, processes, world
    self._preemption = Preemption(world.agreement if world else None)

  def stops_after(self, step: int) -> bool:
    """Returns whether to stop after this step; equal in all processes.

    A SIGTERM, SIGINT or SIGHUP to any of them asks all to stop, from the first
    call on; a second one ends the process. Call it after every step.

    Args:
      step: the step's index, equal in all processes.
    """
    return self._preemption.requested(step)

  def __enter__(self) -> 'Cluster':
    """Makes this the cluster of the module's `agreement`."""
    _entered.append(self)
    return self

  def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
    """Disconnects, reporting success or failure."""
    _entered.clear()
    self._preemption.close()
    if not self.world:
      return
    if kind is None or issubclass(kind, SystemExit | config.Stopped):
      self.world.leave()
      jax.distributed.shutdown()  # Waits for all.
      self.world.close()
      return
    if _may_follow_from_a_peer(error):  # The world then ends this one.
      time.sleep(world.GRACE)
    self.world.fail(getattr(kind, 'code', 1))


def agreement() -> Agreement:
  """Returns the `Agreement` of the current processes, or of this one alone."""
  found = _entered[-1].world if _entered else None
  return found.agreement if found else Agreement()


def _may_follow_from_a_peer(error: BaseException | None) -> bool:
  """Whether the end of another process may have caused the error.

  A collective that is interrupted can raise anything. A `ConfigError` or
  `RunError` comes from this package, unless its cause does not.
  """
  while isinstance(error, config.RunError) and error.__cause__:
    error = error.__cause__
  own = isinstance(error, (config.ConfigError, config.RunError))
  return isinstance(error, Exception) and not own


class ProcessSpec(NamedTuple):
  """A process's place in a run, from arguments and environment, if known."""

  coordinator: str | None  # The `host:port` where process 0 listens.
  processes: int | None
  process: int | None  # Its index.


def process_spec(
  coordinator: str | None = None,
  processes: int | None = None,
  process: int | None = None,
) -> ProcessSpec:
  """Completes the arguments from the environment, see `join`."""
  spec = ProcessSpec(
    coordinator or os.environ.get('JAX_COORDINATOR_ADDRESS'),
    _integer('JAX_NUM_PROCESSES') if processes is None else processes,
    _integer('JAX_PROCESS_ID') if process is None else process,
  )
  if spec in ((None, 1, None), (None, 1, 0)):
    return ProcessSpec(None, 1, 0)
  names = ('coordinator', 'num_processes', 'process_id')
  missing = [n for n, value in zip(names, spec, strict=True) if value is None]
  if 0 < len(missing) < 3:
    raise config.ConfigError(
      f'{", ".join(missing)}: missing; {", ".join(names)} go together'
    )
  if spec.process is not None and spec.processes is not None:
    if not 0 <= spec.process < spec.processes:
      raise config.ConfigError(
        f'process_id={spec.process}: must be in [0, {spec.processes}), '
        'the number of processes'
      )
    if not connection.is_host_port(spec.coordinator or ''):
      raise config.ConfigError(
        f'coordinator={spec.coordinator}: must be HOST:PORT, with a port from '
        '1 to 65535'
      )
  return spec


def _integer(variable: str) -> int | None:
  text = os.environ.get(variable)
  if text is not None and not text.isdecimal():
    raise config.ConfigError(
      f'{variable}={text}: must be a non-negative integer'
    )
  return None if text is None else int(text)


def join(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  agreed: Mapping[str, Any] | None = None,
  timeout: float = 60.0,
  token: str | None = None,
) -> Cluster:
  """Connects to the other processes of a run, if there are any.

  The first three arguments go together. Without them, environment variables
  have the values, as set by `selsync launch` and the recipes:
  `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`. Without
  these variables, JAX looks for Slurm, Open MPI, Kubernetes or a TPU pod. If it
  finds none, or `JAX_NUM_PROCESSES` is 1, this process is alone.

  From then on, a process that dies or does not answer ends the others, each
  with one line. An uncaught `ConfigError` or `RunError` of this package does
  so, too.

  Args:
    coordinator: the `HOST:PORT` where process 0 listens.
    num_processes: the number of processes.
    process_id: the index of this process.
    agreed: values by name that must be equal in all processes, compared as
      text; `None` counts as missing.
    timeout: seconds to wait for the other processes, and until a silent process
      counts as lost; at least 1.
    token: secret of these processes, by default the environment variable
      `SELSYNC_CLUSTER_TOKEN`.

  Returns:
    The processes, as a context manager around the training.

  Raises:
    ConfigError: if JAX has been used before, or arguments or environment break
      their rules.
    RunError: if the processes cannot connect, or do not agree.

  Example:
    >>> import selsync_jax as ss
    >>> with ss.join() as cluster:  # doctest: +SKIP
    ...   print(cluster.process, cluster.processes)
    0 1
  """
  sys.excepthook = functools.partial(_show_uncaught, sys.excepthook)
  if not connection.LEAST <= timeout < math.inf:
    raise config.ConfigError(
      f'timeout={timeout}: must be a finite number of at least '
      f'{connection.LEAST:g}'
    )
  spec = process_spec(coordinator, num_processes, process_id)
  if jax_is_used():
    raise config.ConfigError(
      'join: must come before the first use of JAX, as by jax.devices()'
    )
  return _connect(spec, dict(agreed or {}), timeout, token)


def _show_uncaught(
  show: Callable[..., None], kind: type, error: BaseException, trace: Any
) -> None:
  """Shows an error of this package in one line, and others by `show`."""
  if not isinstance(error, config.ConfigError | config.RunError):
    return show(kind, error, trace)
  print(f'{pathlib.Path(sys.argv[0]).name}: {error}', file=sys.stderr)
  sys.exit(error.code)


def _connect(
  spec: ProcessSpec, agreed: dict[str, Any], timeout: float, token: str | None
) -> Cluster:
  token = token or os.environ.get(connection.TOKEN, '')
  # The world has its own agreement, and SIGTERM stays ours.
  jax.config.update('jax_enable_preemption_service', False)
  devices: Sequence[int] | None = device_ids(os.environ)
  if spec.processes is None:
    spec, devices = _detected(devices, math.ceil(timeout))
  coordinator, processes, process = spec
  if coordinator is None or processes in (None, 1) or process is None:
    return Cluster()
  host = coordinator.rpartition(':')[0]
  agreed = {'processes': processes} | agreed
  offer = f'{host}:{_free_port()}'
  joined = World(coordinator, process, agreed, offer, timeout, token)
  service = proxy.start(joined.offer) if process else joined.offer
  _go_without_proxy(service)
  has_rank = {*os.environ} & {'SLURM_LOCALID', 'OMPI_COMM_WORLD_LOCAL_RANK'}
  jax.distributed.initialize(
    service,
    processes,
    process,
    local_device_ids=devices,
    # JAX would only detect the rank on the host, if there is one.
    cluster_detection_method=None if has_rank else 'deactivate',
    initialization_timeout=math.ceil(timeout),
    # The world notices an unresponsive process first.
    heartbeat_timeout_seconds=round(2 * timeout + 30),
  )
  return Cluster(process, processes, joined)


def _go_without_proxy(service: str) -> None:
  """Lets gRPC connect to `HOST:PORT` whatever HTTP proxy the environment has.

  Such a proxy leads to the internet. It seldom knows the hosts of a run.
  """
  name = 'no_grpc_proxy'  # If it is set, gRPC does not read `no_proxy`.
  known = os.environ.get(name) or os.environ.get('no_proxy', '')
  host = service.rpartition(':')[0].strip('[]')
  os.environ[name] = ','.join(filter(None, [known, host]))
  jax.config.update('jax_check_proxy_envs', False)


def _detected(
  devices: Sequence[int] | None, timeout: int
) -> tuple[ProcessSpec, Sequence[int] | None]:
  """Returns this process's place and devices, from the scheduler JAX detects.

  Raises:
    ConfigError: if the environment of the scheduler is incomplete.
    RunError: if the scheduler does not answer.
  """
  tasks, started = map(os.environ.get, ('SLURM_NTASKS', 'SLURM_STEP_NUM_TASKS'))
  has_mpi = 'OMPI_MCA_orte_hnp_uri' in os.environ  # JAX prefers it.
  if started not in (None, tasks) and not has_mpi:
    raise config.ConfigError(
      f'SLURM_NTASKS={tasks}: this is a step of {started}; start all tasks '
      f'with srun, or {_ALONE}'
    )
  try:
    with warnings.catch_warnings():
      # Seven lines in each pod of Kubernetes without the package `kubernetes`.
      warnings.filterwarnings('ignore', 'Kubernetes environment detected')
      found = clusters.ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, devices, None, timeout
      )
  except Exception as error:  # Schedulers' clients raise their own.
    incomplete = isinstance(error, KeyError | ValueError)
    kind = config.ConfigError if incomplete else config.RunError
    reason = (
      f'{error.args[0]} is not set'
      if isinstance(error, KeyError)
      else user_errors.one_line(error)
    )
    raise kind(
      f'the scheduler that JAX detects: {reason}; set JAX_COORDINATOR_ADDRESS, '
      f'JAX_NUM_PROCESSES and JAX_PROCESS_ID, or {_ALONE}'
    ) from error
  return ProcessSpec(*found[:3]), found[3]


def device_ids(environment: Mapping[str, str]) -> list[int] | None:
  """Returns the `local_device_ids` for `jax.distributed.initialize`.

  `None` leaves the choice to JAX. Under Slurm and Open MPI, it gives each
  process the device of its rank on the host. That is wrong for the only process
  of a host, and if Slurm binds the devices, so that each task sees only its
  own. Then the list is empty, which keeps all devices that the process sees.
  """
  if 'JAX_LOCAL_DEVICE_IDS' in environment:
    return None
  tasks, nodes = map(environment.get, ('SLURM_NTASKS', 'SLURM_STEP_NUM_NODES'))
  is_alone = environment.get('OMPI_COMM_WORLD_LOCAL_SIZE') == '1' or (
    tasks is not None and tasks == nodes
  )
  is_bound = (
    'SLURM_GPUS_PER_TASK' in environment
    and environment.get('SLURM_GPU_BIND') != 'none'
  )
  return [] if is_alone or is_bound else None


def _free_port() -> int:
  with socket.create_server(('', 0)) as server:
    return server.getsockname()[1]


def jax_is_used() -> bool:
  """Returns whether this process has used JAX, which fixes its devices."""
  return xla_bridge.backends_are_initialized()


def count() -> int:
  """Returns the number of processes, without using JAX."""
  state: Any = distributed.global_state
  return state.num_processes


def is_first() -> bool:
  """Returns whether this process writes files and prints."""
  return jax.process_index() == 0


def suffix() -> str:
  """Returns a suffix for files of this process; empty for the first one."""
  return '' if is_first() else f'.{jax.process_index()}'


def local_workers(workers: int) -> range:
  """Returns the indices of the workers that have devices of this process.

  The number of workers must be a multiple or a divisor of the number of
  processes.
  """
  processes = jax.process_count()
  first = jax.process_index() * workers // processes
  return range(first, first + max(1, workers // processes))


def from_first(value: np.ndarray) -> np.ndarray:
  """Returns process 0's value; all processes need equal shapes and dtypes."""
  return multihost_utils.broadcast_one_to_all(value)


def bytes_from_first(content: bytes) -> bytes:
  """Returns the bytes of the first process.

  They pass through the devices, in pieces. Each length is compiled once, so
  there are few of them.
  """

  def sent(start, length):
    part = content[start : start + length].ljust(length, b'\0')
    return from_first(np.frombuffer(part, np.uint8)).tobytes()

  content = len(content).to_bytes(8, 'little') + content
  pieces = [sent(0, _FIRST)]
  size, start = 8 + int.from_bytes(pieces[0][:8], 'little'), _FIRST
  while start < size:
    length = min(_MOST, 1 << (size - start - 1).bit_length())
    pieces.append(sent(start, length))
    start += length
  return b''.join(pieces)[8:size]


def json_from_first(value: Any) -> Any:
  """Returns the first process's value, which JSON must be able to hold."""
  return json.loads(bytes_from_first(json.dumps(value).encode()))


def digests(digest: bytes) -> dict[str, bytes]:
  """Returns the digest of each process, by the process's name."""
  each = multihost_utils.process_allgather(np.frombuffer(digest, np.uint8))
  rows = np.atleast_2d(each)
  return {f'process {i}': row.tobytes() for i, row in enumerate(rows)}


def wait_for_all(barrier: str) -> None:
  """Returns when every process has called this with the same name."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(barrier)
