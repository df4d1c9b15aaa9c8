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
import shutil
from typing import TYPE_CHECKING

from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.config import ConfigError

if TYPE_CHECKING:
  import ml_collections

  from selsync_jax.training.step_cost import Cost

FORMULA = """\
step = compute + collectives at each step
  + (1 - LSSR) x those of an average
  - what is hidden
an all-reduce of b bytes
  = 2 (N-1)/N x b / bandwidth + 2 (N-1) x latency"""

HEAD = (
  *('method', 'LSSR', 'sent', 'vote', 'average', 'hidden', 'delay'),
  *('step', 'speed-up'),
)
DETAILS = ('delay', 'hidden', 'vote', 'average', 'sent')
"""Columns that a narrow terminal has no room for, the least important first."""


def main(arguments: Sequence[str]) -> None:
  """Measures a step, adds the network, and prints the table."""
  line = flags.CommandLine('plan', config=config_file.DEFAULT)
  about = "Number of workers. Default: the config's."
  line.flag('workers', about, flags.whole(1))
  about = 'Bandwidth of each link, per direction; 1GB/s is in bytes.'
  line.flag('bandwidth', about, flags.bandwidth, '1Gbit')
  about = 'Devices that share a batch. Default: mesh.data times mesh.fsdp.'
  line.flag('devices-per-worker', about, flags.whole(1))
  about = 'Bandwidth between them, per direction.'
  line.flag('inner-bandwidth', about, flags.bandwidth, '100GB/s')
  line.flag('latency', 'One-way latency of a message.', flags.latency, '1ms')
  line.flag('lssr', 'LSSR of SelSync, in [0, 1).', flags.lssr)
  line.flag('run', 'Workdir of a finished run, for its LSSR.', flags.folder)
  line.flag('steps', 'Steps to measure.', flags.whole(3), '20')
  options = line.parse(arguments)
  selsync_lssr = _lssr(options.lssr, options.run)
  if options.workers:
    options.fields.append(f'--config.workers={options.workers}')
  configs = _configs(options.file, options.fields)
  config = configs['selsync']
  from selsync_jax.devices import backend
  from selsync_jax.sync import network

  devices = options.devices_per_worker or math.prod(config.mesh.values())
  if config.batch_size % (devices * config.accumulate):
    raise ConfigError(
      f'config.batch_size={config.batch_size}: must be a multiple of '
      f'--devices-per-worker={devices} times '
      f'config.accumulate={config.accumulate}'
    )
  links = network.Network(config.workers, options.bandwidth, options.latency)
  within = network.Network(devices, options.inner_bandwidth, 0.0)
  backend.start(config.device)
  _print_costs(configs, links, within, selsync_lssr, options.steps)


def _lssr(given: float | None, run: pathlib.Path | None) -> float:
  """Returns the LSSR of SelSync: as given, or that of a run."""
  from selsync_jax.runs import records

  if given is not None and run is None:
    return given
  if given is not None or run is None:
    line = 'give either --lssr=LSSR or --run=WORKDIR of a finished run'
    raise ConfigError(line)
  summary = records.read_summary(run)
  if not summary:
    raise ConfigError(f'--run={run}: holds no finished run')
  if 'lssr' not in summary:
    raise ConfigError(f'--run={run}: an asynchronous run has no LSSR')
  return summary['lssr']


def _configs(
  file: str, fields: Sequence[str]
) -> dict[str, 'ml_collections.ConfigDict']:
  """Returns the config of every method, even if `FILE:METHOD` picks one.

  A field of `sync` is for the methods that have it, if any has it.
  """
  from selsync_jax.commands.trials import has  # Imports NumPy.
  from selsync_jax.methods import METHODS

  config_file.register(file, [])  # Not every field is its default method's.
  _, *picked = config_file.names(file)
  variant = ','.join(name for name in picked if name not in METHODS)
  file = f'{file.partition(":")[0]}:{variant}'
  files = {m: config_file.with_method(file, m) for m in list(METHODS)}
  named = {f: found[2] for f in fields if (found := flags.FIELD.fullmatch(f))}
  own = {f: name for f, name in named.items() if name.startswith('sync.')}
  bare = {m: config_file.load(name, []) for m, name in files.items() if own}
  owners = {f: [m for m in files if has(bare[m], own[f])] for f in own}
  return {
    method: config_file.load(
      name, [f for f in fields if method in (owners.get(f) or files)]
    )
    for method, name in files.items()
  }


def _print_costs(configs, links, within, lssr, steps):
  """Measures a step with SelSync's config, and prints all methods' costs.

  `links` is the network between workers, `within` that inside a worker.
  """
  # Importing TensorFlow is slow; mistakes were reported above.
  from selsync_jax import methods
  from selsync_jax.report import facts
  from selsync_jax.sync.traffic import Collective
  from selsync_jax.sync.traffic import nbytes
  from selsync_jax.training import step_cost

  measured = step_cost.measure(configs['selsync'], steps)
  context = methods.Context(measured.steps_per_epoch, configs['selsync'].seed)

  size = nbytes(measured.shared['params'])
  pieces = configs['selsync'].accumulate  # XLA reduces each one's gradient.
  shared = pieces * within.seconds(Collective('all_reduce', size))
  if configs['selsync'].mesh.fsdp > 1:  # Two all-gathers, a reduce-scatter.
    shared *= 1.5
  compute = measured.seconds / within.workers + shared

  def cost(strategy):
    return step_cost.cost(
      strategy, measured.shared, links, lssr, measured.opt_state, compute
    )

  costs, impossible = {}, []
  for method, config in configs.items():
    fields = config.sync.to_dict()
    try:
      strategy = methods.create_strategy(context=context, **fields)
      strategy.averager.check(links.workers)
      costs[method] = cost(strategy)
    except ValueError as error:  # The parts or this many workers do not fit.
      impossible.append(f'{method}: {error}')
  if not costs:  # All methods share the mistake.
    raise ConfigError(f'config.sync: {impossible[0]}')
  bsp = cost(methods.create_strategy('bsp', context))
  lower, upper = measured.quartiles
  print(
    f'{links.workers} workers, {facts.size(size)} of parameters\n'
    f'a step of one worker computes {1e3 * measured.seconds:.2f} ms\n'
    f'(median of {steps - 1}; quartiles {1e3 * lower:.2f} and '
    f'{1e3 * upper:.2f})'
  )
  if within.workers > 1:
    print(
      f'shared by {within.workers} devices: {1e3 * compute:.2f} ms,\n'
      f'of which {1e3 * shared:.2f} ms for what they send each other'
    )
  print(f'\n{FORMULA}\n')
  print(*_table(compute, costs, bsp), *impossible, sep='\n')


def _table(
  compute: float, costs: Mapping[str, 'Cost'], reference: 'Cost'
) -> Iterator[str]:
  """Yields a head, then a row for each method, compared with `reference`.

  It leaves out `DETAILS` until a row is as wide as the terminal.
  """
  from selsync_jax.report import facts

  rows = [[*HEAD]]
  for method, cost in costs.items():
    step = compute + cost.network
    waits = cost.vote, cost.average, cost.hidden
    times = [f'{1e3 * seconds:.2f}' for seconds in waits]
    delay = '-' if cost.delay is None else f'{cost.delay}'
    speed_up = (compute + reference.network) / step
    cells = [f'{cost.lssr:.3f}', facts.size(cost.sent), *times, delay]
    rows.append([method, *cells, f'{1e3 * step:.2f}', f'{speed_up:.2f}'])
  columns = {head: [head, *cells] for head, *cells in zip(*rows, strict=True)}
  room = shutil.get_terminal_size().columns
  for head in DETAILS:
    if sum(2 + max(map(len, cells)) for cells in columns.values()) - 2 > room:
      del columns[head]
  first, *others = (max(map(len, cells)) for cells in columns.values())
  for name, *cells in zip(*columns.values(), strict=True):
    yield '  '.join([name.ljust(first), *map(str.rjust, cells, others)])
