"""Estimate the time that each method saves on a given network.

  selsync plan --workers=16 --bandwidth=1Gbit --lssr=0.9

measures a step of one worker on this machine, adds the cost of the network, and
prints the time of a step and the speed-up over BSP, for every method with the
fields of its config. SelSync's LSSR comes from its budget, or from --lssr; the
LSSR of other methods follows from their period.

  selsync plan --parameters=125M --step=200ms --workers=16

plans for a model that this package does not have, and so does `plan` in Python.

  selsync plan --hosts=4 --devices=8 --memory=80GB

prints the fastest layouts (workers x data x fsdp) of these devices for the
config's method, with the flags to train in each.

  selsync plan --probe=INVITATION

on each host of the islands that `selsync meet` waits for measures the bandwidth
and the latency between them, and plans with the worst of each.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import functools
import math
import os
import socket
from typing import Annotated, Any, TYPE_CHECKING

from annotated_types import Ge

from selsync_jax.commands import config_file, flags, layouts
from selsync_jax.config import ConfigError, Count, Positive, Share

if TYPE_CHECKING:
  import ml_collections

  from selsync_jax.islands.probing import IslandNetwork, Links
  from selsync_jax.report import tables
  from selsync_jax.training.step_cost import Cost

FORMULA = """\
step = compute + collectives at each step
  + (1 - LSSR) x collectives of an average
  - time hidden behind compute
an all-reduce of b bytes
  = 2 (N-1)/N x b / bandwidth + 2 (N-1) x latency"""

ISLANDS = """\
step = compute + collectives at each step
  + (1 - LSSR) x (collectives and computation of an average + round trip)
  - time hidden behind compute
an all-reduce of b bytes
  = 2 (N-1)/N x b / bandwidth + 2 ceil((N-1)/4) x round trip"""
"""The formula for islands, which fetch from four others at a time."""

DETAILS = ('delay', 'hidden', 'vote', 'average', 'sent')
"""Columns that a narrow terminal has no room for, the least important first."""


def main(arguments: Sequence[str]) -> None:
  """Measures a step, adds the network, and prints the table."""
  line = flags.CommandLine('plan', config=config_file.DEFAULT)
  about = "Number of workers. Default: the config's or probed."
  line.flag('workers', about, flags.of(Count))
  about = 'Bandwidth of each link, per direction; 1GB/s is in bytes.'
  line.flag('bandwidth', f'{about} Default: 1Gbit.', flags.bandwidth)
  about = 'Bandwidth between the devices of a worker, per direction.'
  line.flag('inner-bandwidth', about, flags.bandwidth, '100GB/s')
  about = 'One-way latency of a message. Default: 1ms.'
  line.flag('latency', about, flags.latency)
  about = 'Measure both, with the invitation of `selsync meet`.'
  line.flag('probe', about)
  about = "Name of the probe. Default: the host's name."
  line.flag('island', about, flags.name)
  about = "LSSR of SelSync. Default: its budget's, or 0.9."
  line.flag('lssr', about, flags.of(Share))
  line.flag('steps', 'Steps to measure.', flags.of(Annotated[int, Ge(3)]), '20')
  about = "Parameters of a custom model, such as 125M, instead of the config's"
  line.flag('parameters', f'{about}; with --step.', flags.count)
  about = "Time of one worker's step of this model, such as 200ms."
  line.flag('step', about, flags.duration)
  about = 'Choose workers x data x fsdp for this many hosts,'
  line.flag('hosts', about, flags.of(Count))
  line.flag(
    'devices', 'each with this many devices (default 1),', flags.of(Count)
  )
  line.flag('memory', 'each with this memory (default 80GB).', flags.size)
  options = line.parse(arguments)
  layouts.check(options)
  _check_network(options)
  if options.hosts:
    layouts.show(options)
    return
  is_given = _is_given(options)
  if options.workers:
    options.fields.append(f'--config.workers={options.workers}')
  configs = _configs(options.file, options.fields)
  config = configs['selsync']
  from selsync_jax.devices import backend
  from selsync_jax.methods import adaptive
  from selsync_jax.sync import network

  lssr = options.lssr
  if lssr is None:
    lssr = config.sync.get('lssr') or adaptive.LSSR
  devices = 1 if is_given else math.prod(config.mesh.values())
  within = network.Network(devices, options.inner_bandwidth, 0.0)
  backend.start(config.device)
  # Importing TensorFlow is slow; mistakes were reported above.
  from selsync_jax.training import step_cost

  if is_given:
    measured = step_cost.given(config, options.parameters, options.step)
  else:
    measured = step_cost.measure(config, options.steps)
  links = network.Network(config.workers, options.bandwidth, options.latency)
  work = None
  if options.probe:
    from selsync_jax.islands import probing  # Imports Arrow and cryptography.

    links, work = _probed(options, measured.shared), probing.work
  _print_costs(configs, measured, links, within, lssr, options.steps, work)


def _check_network(options: argparse.Namespace) -> None:
  """Fills in the default network, or checks the flags of a probe."""
  for name, default in {'bandwidth': 1e9, 'latency': 1e-3}.items():
    if getattr(options, name) is None:
      setattr(options, name, default)
    elif options.probe:
      raise ConfigError(f'--{name}: leave it out; --probe measures it')
  if options.probe:
    from selsync_jax.islands import credentials  # Imports cryptography.

    credentials.Invitation.parse(options.probe)
  elif options.island:
    raise ConfigError(f'--island={options.island}: only valid with --probe')


def _probed(options: argparse.Namespace, shared: Any) -> 'IslandNetwork':
  """Measures the links between islands that average `shared`; prints them."""
  from selsync_jax.islands import probing
  from selsync_jax.report import tables
  from selsync_jax.sync.traffic import nbytes

  own = options.island or os.environ.get('SELSYNC_ISLAND')
  name, size = own or socket.gethostname(), nbytes(shared['params'])
  links = probing.probe(options.probe, name, round(size))
  title = 'Mbit/s and ms, from the island of a row to that of a column'
  tables.show(_matrix(links), title, 'from')
  return links.network(options.workers or len(links.names))


def _matrix(links: 'Links') -> 'tables.Table':
  """Returns the bandwidth and the round trip of each pair of islands."""
  from selsync_jax.report.tables import Cell, NONE

  each = zip(
    links.names, links.bandwidth / 1e6, 1e3 * links.round_trip, strict=True
  )
  return {
    name: {
      to: NONE if to == name else Cell(None, f'{rate:.4g}, {ms:.2f}')
      for to, rate, ms in zip(links.names, rates, times, strict=True)
    }
    for name, rates, times in each
  }


def plan(
  params: Any,
  *,
  step_seconds: float,
  workers: int,
  bandwidth: str = '1Gbit',
  latency: str = '1ms',
  lssr: float | None = None,
  model_state: Any = (),
  opt_state: Any = (),
  steps_per_epoch: int | None = None,
) -> dict[str, Any]:
  """Estimates a step of every method for a custom model.

  Needs the extra `train`. Methods that cannot have this number of workers, or
  this optimizer, are left out.

  Args:
    params: the parameters of one worker, or their shapes.
    step_seconds: the time of a worker's step without communication, in seconds.
    workers: N, the number of workers, one per host.
    bandwidth: what one connection carries per direction, such as `200Mbit`.
    latency: the one-way latency of a message, such as `50us`.
    lssr: the LSSR, in [0, 1), of SelSync and other methods without a period;
      by default the LSSR of SelSync's budget.
    model_state: the state that is averaged with the parameters, or its shapes.
    opt_state: the state of the optimizer, or its shapes, for methods that
      average it.
    steps_per_epoch: the number of steps, for methods whose period is a share of
      an epoch; by default the same as with `--parameters`.

  Returns:
    A `step_cost.Cost` by method: the seconds of a `step`, in which the worker
    `compute`s and waits for a `vote` and an `average`; the wait for a vote
    between islands, which begin the next step `ahead`; the bytes `sent`; the
    `lssr`; and the `delay` in steps that hides an average.

  Raises:
    ConfigError: for a value that breaks its rule.

  Example:
    >>> import numpy as np
    >>> import selsync_jax as ss
    >>> params = {'w': np.zeros((1000, 1000), np.float32)}
    >>> costs = ss.plan(params, step_seconds=0.05, workers=8)
    >>> round(costs['bsp'].step / costs['local_sgd'].step, 2)
    2.04
  """
  from selsync_jax import methods
  from selsync_jax.methods import adaptive
  from selsync_jax.sync import network
  from selsync_jax.training import step_cost

  lssr = adaptive.LSSR if lssr is None else lssr
  steps = step_cost.EPOCH if steps_per_epoch is None else steps_per_epoch
  checks = {
    'step_seconds': (flags.of(Positive), step_seconds),
    'workers': (flags.of(Count), workers),
    'bandwidth': (flags.bandwidth, bandwidth),
    'latency': (flags.latency, latency),
    'lssr': (flags.of(Share), lssr),
    'steps_per_epoch': (flags.of(Count), steps),
  }
  read = {}
  for name, (check, value) in checks.items():
    try:
      read[name] = check(str(value))
    except ValueError as error:
      raise ConfigError(f'{name}={value!r}: {error}') from error
  links = network.Network(workers, read['bandwidth'], read['latency'])
  costs, _ = step_cost.costs(
    {name: {'method': name} for name in methods.METHODS},
    methods.Context(steps, seed=0),
    {'params': params, 'model_state': model_state},
    links,
    lssr,
    lambda method: opt_state,
    step_seconds,
  )
  return costs


def _is_given(options: argparse.Namespace) -> bool:
  """Returns whether the flags describe a custom model."""
  given = options.parameters, options.step
  if None in given and given != (None, None):
    raise ConfigError('--parameters and --step: go together')
  return options.step is not None


def _configs(
  file: str, fields: Sequence[str]
) -> dict[str, 'ml_collections.ConfigDict']:
  """Returns the config of every method, even if `FILE:METHOD` picks one.

  A field of `sync` applies to the methods that have it, or to all if none has.
  """
  from selsync_jax.commands.trials import has  # Imports NumPy.
  from selsync_jax.methods import METHODS

  config_file.register(file, [])  # The default method may lack fields.
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


def _print_costs(configs, measured, links, within, lssr, steps, work):
  """Prints all methods' costs.

  `links` is the network between workers, `within` the one inside a worker. If
  the workers are islands, `work` measures the computation of an average.
  """
  from selsync_jax import methods
  from selsync_jax.report import facts, tables
  from selsync_jax.sync.traffic import Collective, nbytes
  from selsync_jax.training import step_cost

  context = methods.Context(measured.steps_per_epoch, configs['selsync'].seed)
  size = nbytes(measured.shared['params'])
  pieces = configs['selsync'].accumulate  # XLA reduces each one's gradient.
  shared = pieces * within.seconds(Collective('all_reduce', size))
  if configs['selsync'].mesh.fsdp > 1:  # Two all-gathers, a reduce-scatter.
    shared *= 1.5
  compute = measured.seconds / within.workers + shared

  def moments(method):
    config = configs[method]
    if config.optimizer.to_dict() == configs['selsync'].optimizer.to_dict():
      return measured.opt_state
    return step_cost.moments(config, measured.shared)

  costs, impossible = step_cost.costs(
    {name: config.sync.to_dict() for name, config in configs.items()},
    context,
    *(measured.shared, links, lssr, moments, compute),
    work and functools.partial(work, nbytes=size),
  )
  lines = [f'{method}: {reason}' for method, reason in impossible.items()]
  if not costs:  # All methods share the mistake.
    raise ConfigError(f'config.sync: {lines[0]}')
  bsp = step_cost.cost(
    methods.create_strategy('bsp', context),
    *(measured.shared, links, lssr),
    compute=compute,
  )
  print(f'{links.workers} workers, {facts.size(size)} of parameters')
  print(f'a step of one worker computes {1e3 * measured.seconds:.2f} ms')
  if measured.quartiles:
    lower, upper = (1e3 * seconds for seconds in measured.quartiles)
    print(f'(median of {steps - 1}; quartiles {lower:.2f} and {upper:.2f})')
  if within.workers > 1:
    print(
      f'shared by {within.workers} devices: {1e3 * compute:.2f} ms,\n'
      f'of which {1e3 * shared:.2f} ms for communication'
    )
  print(f'\n{ISLANDS if work else FORMULA}\n')
  tables.show(_table(costs, bsp), spare=DETAILS)
  print(*lines, *_between_islands(costs, bsp), sep='\n')


def _between_islands(
  costs: Mapping[str, 'Cost'], reference: 'Cost'
) -> Iterator[str]:
  """Yields lines about methods whose votes islands need not wait for."""
  voting = {name: cost for name, cost in costs.items() if cost.vote}
  if voting:
    yield 'Islands begin the next step during a vote:'
  for name, cost in voting.items():
    step = cost.compute + cost.ahead + cost.average
    faster = reference.step / step
    yield f'  {name} {1e3 * step:.2f} ms, speed-up {faster:.2f}'


def _table(costs: Mapping[str, 'Cost'], reference: 'Cost') -> 'tables.Table':
  """Returns a row for each method, compared with `reference`."""
  from selsync_jax.report import facts, tables

  def row(cost):
    waits = {k: getattr(cost, k) for k in ('vote', 'average', 'hidden')}
    times = {k: (v, f'{1e3 * v:.2f}') for k, v in waits.items()}
    cells = {
      'LSSR': (cost.lssr, f'{cost.lssr:.3f}'),
      'sent': (cost.sent, facts.size(cost.sent)),
      **times,
      'delay': (cost.delay, '-' if cost.delay is None else f'{cost.delay}'),
      'step': (cost.step, f'{1e3 * cost.step:.2f}'),
      'speed-up': (None, f'{reference.step / cost.step:.2f}'),
    }
    return {name: tables.Cell(*cell) for name, cell in cells.items()}

  return {method: row(cost) for method, cost in costs.items()}
