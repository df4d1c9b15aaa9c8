"""Estimate the time that each method saves on a given network.

  selsync plan --workers=16 --bandwidth=1Gbit --lssr=0.9

measures a step of one worker on this machine, adds the cost of the network, and
prints the time of a step and the speed-up over BSP, for every method with the
fields of its config. SelSync's LSSR is given or comes from a finished run; the
LSSR of other methods follows from their period.
"""

from collections.abc import Iterator, Mapping, Sequence
import math
import pathlib
from typing import TYPE_CHECKING

from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.config import ConfigError

if TYPE_CHECKING:
  import ml_collections

  from selsync_jax.training.step_cost import Cost

FORMULA = """\
step = compute + collectives at each step + (1 - LSSR) x those of an average
an all-reduce of b bytes = 2 (N-1)/N x b / bandwidth + 2 (N-1) x latency"""

HEAD = ['method', 'LSSR', 'sent a step', 'vote', 'average', 'step', 'speed-up']


def main(arguments: Sequence[str]) -> None:
  """Measures a step, adds the network, and prints the table."""
  line = flags.CommandLine('plan', config=config_file.DEFAULT)
  line.flag(
    'workers', flags.whole(1), None, "Number of workers. Default: the config's."
  )
  line.flag(
    'bandwidth',
    _bandwidth,
    '1Gbit',
    'Bandwidth of each link, per direction; 1GB/s is in bytes.',
  )
  line.flag(
    'devices-per-worker',
    flags.whole(1),
    None,
    'Devices that share a batch. Default: mesh.data times mesh.fsdp.',
  )
  line.flag(
    'inner-bandwidth',
    _bandwidth,
    '100GB/s',
    'Bandwidth between them, per direction.',
  )
  line.flag('latency', _latency, '1ms', 'One-way latency of a message.')
  line.flag('lssr', flags.lssr, None, 'LSSR of SelSync, in [0, 1).')
  line.flag(
    'run', flags.folder, None, 'Workdir of a finished run, for its LSSR.'
  )
  line.flag('steps', flags.whole(3), '20', 'Steps to measure.')
  options = line.parse(arguments)
  selsync_lssr = _lssr(options.lssr, options.run)
  if options.workers:
    options.fields.append(f'--config.workers={options.workers}')
  configs = _configs(options.file, options.fields)
  config = configs['selsync']
  from selsync_jax.devices import backend
  from selsync_jax.sync import network

  links = network.Network(config.workers, options.bandwidth, options.latency)
  devices = _devices(config, options.devices_per_worker)
  within = network.Network(devices, options.inner_bandwidth, 0.0)
  backend.start(config.device)
  _print_costs(configs, links, within, selsync_lssr, options.steps)


def _bandwidth(text: str) -> float:
  from selsync_jax.sync import network  # Imports JAX.

  return network.bandwidth(text)


def _latency(text: str) -> float:
  from selsync_jax.sync import network  # Imports JAX.

  return network.latency(text)


def _devices(config: 'ml_collections.ConfigDict', given: int | None) -> int:
  """Returns the devices per worker: as given, or as in the config's mesh."""
  devices = given or math.prod(config.mesh.values())
  if config.batch_size % devices:
    raise ConfigError(
      f'config.batch_size={config.batch_size}: must be a multiple of '
      f'--devices-per-worker={devices}'
    )
  return devices


def _lssr(given: float | None, run: pathlib.Path | None) -> float:
  """Returns the LSSR of SelSync: as given, or that of a run."""
  from selsync_jax.runs import records

  if given is not None and run is None:
    return given
  if given is not None or run is None:
    raise ConfigError(
      'give either --lssr=LSSR or --run=WORKDIR of a finished run'
    )
  summary = records.read_summary(run)
  if summary is None:
    raise ConfigError(f'--run={run}: holds no finished run')
  return summary['lssr']


def _configs(
  file: str, fields: Sequence[str]
) -> dict[str, 'ml_collections.ConfigDict']:
  """Returns the config of every method, even if `FILE:METHOD` picks one."""
  from selsync_jax.methods import METHODS

  path, _, picked = file.partition(':')
  config_file.load(path, ())  # The file may register methods of its own.
  variant = [name for name in picked.split(',') if name not in METHODS]
  file = ':'.join([path, *variant])
  return {
    method: config_file.load(config_file.with_method(file, method), fields)
    for method in list(METHODS)
  }


def _print_costs(configs, links, within, lssr, steps):
  """Measures a step with SelSync's config, and prints the costs of all methods.

  `links` is the network between workers, `within` that between the devices of a
  worker.
  """
  # Importing TensorFlow is slow; mistakes were reported above.
  from selsync_jax import methods
  from selsync_jax.report import facts
  from selsync_jax.sync.traffic import Collective
  from selsync_jax.sync.traffic import nbytes
  from selsync_jax.training import step_cost

  measured = step_cost.measure(configs['selsync'], steps)
  context = methods.Context(measured.steps_per_epoch, configs['selsync'].seed)

  def cost(strategy):
    return step_cost.cost(
      strategy, measured.shared, links, lssr, measured.opt_state
    )

  costs, impossible = {}, []
  for method, config in configs.items():
    try:
      strategy = methods.create_strategy(
        context=context, **config.sync.to_dict()
      )
      strategy.averager.check(links.workers)
      costs[method] = cost(strategy)
    except ValueError as error:  # The parts or this many workers do not fit.
      impossible.append(f'{method}: {error}')
  if not costs:  # All methods share the mistake.
    raise ConfigError(f'config.sync: {impossible[0]}')
  bsp = cost(methods.create_strategy('bsp', context))
  size = nbytes(measured.shared['params'])
  shared = within.seconds(Collective('all_reduce', size))
  if configs['selsync'].mesh.fsdp > 1:  # Two all-gathers, a reduce-scatter.
    shared *= 1.5
  compute = measured.seconds / within.workers + shared
  lower, upper = measured.quartiles
  print(
    f'{links.workers} workers, '
    f'{facts.size(size)} of parameters; '
    f'a step of one worker computes {1e3 * measured.seconds:.2f} ms '
    f'(median of {steps - 1}; quartiles {1e3 * lower:.2f} and '
    f'{1e3 * upper:.2f})'
  )
  if within.workers > 1:
    print(
      f'shared by {within.workers} devices: {1e3 * compute:.2f} ms, of which '
      f'{1e3 * shared:.2f} ms for what they send each other'
    )
  print(f'\n{FORMULA}\n')
  print(*_aligned(_table(compute, costs, bsp)), *impossible, sep='\n')


def _table(
  compute: float, costs: Mapping[str, 'Cost'], reference: 'Cost'
) -> list[list[str]]:
  """Returns a head, then a row for each method, compared with `reference`."""
  from selsync_jax.report import facts

  bsp = compute + reference.network
  rows = [
    [
      method,
      f'{cost.lssr:.3f}',
      facts.size(cost.sent),
      f'{1e3 * cost.vote:.2f}',
      f'{1e3 * cost.average:.2f}',
      f'{1e3 * (compute + cost.network):.2f}',
      f'{bsp / (compute + cost.network):.2f}',
    ]
    for method, cost in costs.items()
  ]
  return [HEAD, *rows]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
  first, *others = (max(map(len, each)) for each in zip(*rows, strict=True))
  for name, *cells in rows:
    yield '  '.join([name.ljust(first), *map(str.rjust, cells, others)])
