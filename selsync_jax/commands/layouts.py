"""The best layouts of a cluster's devices, for `selsync plan --hosts=H`."""

import argparse
import collections
from collections.abc import Mapping
from typing import Any, TYPE_CHECKING

from selsync_jax.commands import config_file
from selsync_jax.config import ConfigError

if TYPE_CHECKING:
  import ml_collections

  from selsync_jax.devices.layout import Layout
  from selsync_jax.training.layouts import Memory, Plan

DETAILS = ('method', 'optimizer', 'parameters', 'temporary', 'within')
"""Columns that a narrow terminal has no room for, the least important first."""


def check(options: argparse.Namespace) -> None:
  """Raises `ConfigError` for flags that do not go together."""
  if options.hosts is None:
    wrong, rule = ('devices', 'memory'), 'only valid with --hosts'
  else:
    wrong = 'workers', 'parameters', 'probe'
    rule = 'cannot be combined with --hosts, which plans workers of a config'
  for name in wrong:
    if getattr(options, name) is not None:
      raise ConfigError(f'--{name}: {rule}')


def show(options: argparse.Namespace) -> None:
  """Prints the fastest layouts that fit, with the flags to train in each."""
  settings = config_file.settings(options.file, options.fields)
  config = settings.config
  hosts, devices = options.hosts, options.devices or 1
  examples, alone = _share(config, hosts * devices)
  _start(config.device, hosts, devices)
  # Importing TensorFlow is slow; mistakes were reported above.
  from selsync_jax.methods import adaptive
  from selsync_jax.report import facts
  from selsync_jax.training import layouts, step_cost
  from selsync_jax.training.setup import create_setup

  cluster = layouts.Cluster(
    *(hosts, devices, options.bandwidth),
    *(options.inner_bandwidth, options.latency),
  )
  compute = options.step or step_cost.measure(alone, options.steps).seconds
  setup = create_setup(settings)
  possible, impossible = layouts.every(cluster)
  lssr = options.lssr
  if lssr is None:
    lssr = config.sync.get('lssr') or adaptive.LSSR
  plans, refused = layouts.plans(setup, possible, cluster, lssr, compute)
  limit = options.memory or 80e9
  fits, lacking = layouts.fitting(setup, plans, examples, limit)
  print(
    f'{hosts} hosts of {devices} devices, {config.sync.method}\n'
    f'{examples} examples a step; a device computes its {alone.batch_size} in '
    f'{1e3 * compute:.2f} ms'
  )
  if fits:
    _print_table(fits)
  for plan in fits:
    words = ' '.join(_flags(config, plan.layout, examples))
    print(f'{layouts.name(plan.layout)}: {words}')
  _print_others(lacking, impossible | refused)
  if not fits:
    raise ConfigError(
      f'--memory={facts.size(limit)}: no layout fits; see the lines above'
    )


def _share(
  config: 'ml_collections.ConfigDict', devices: int
) -> tuple[int, 'ml_collections.ConfigDict']:
  """Returns the examples of a step, and the config of one device's share."""
  examples = config.workers * config.batch_size
  if examples % (devices * config.accumulate):
    raise ConfigError(
      f'config.workers={config.workers}, '
      f'config.batch_size={config.batch_size}: their product must be a '
      f'multiple of config.accumulate={config.accumulate} times the {devices} '
      'devices of all hosts'
    )
  alone = config.copy_and_resolve_references()
  alone.batch_size, alone.mapper = examples // devices, 'auto'
  alone.mesh.data = alone.mesh.fsdp = 1
  return examples, alone


def _start(device: str, hosts: int, devices: int) -> None:
  """Starts JAX with as many devices as the cluster, on a CPU virtual ones."""
  import jax

  from selsync_jax.devices import backend

  backend.start(device, workers=hosts * devices)
  if jax.device_count() < hosts * devices:
    raise ConfigError(
      f'--hosts={hosts} --devices={devices}: XLA plans the memory for '
      f'{hosts * devices} devices, but there are {jax.device_count()} '
      f'({jax.default_backend()}); plan with --config.device=cpu and --step'
    )


def _flags(
  config: 'ml_collections.ConfigDict', layout: 'Layout', examples: int
) -> list[str]:
  """Returns the flags that change the config to a layout."""
  mapper = 'mesh' if layout.devices_per_worker > 1 else 'pmap'
  fields: dict[str, tuple[Any, Any]] = {
    'workers': (config.workers, layout.workers),
    'batch_size': (config.batch_size, examples // layout.workers),
    'mapper': (config.mapper, mapper),
    'mesh.data': (config.mesh.data, layout.data),
    'mesh.fsdp': (config.mesh.fsdp, layout.fsdp),
  }
  changed = {name: new for name, (old, new) in fields.items() if new != old}
  return config_file.arguments(changed)


def _print_table(fits: 'Mapping[Plan, Memory]') -> None:
  """Prints a row for each layout."""
  from selsync_jax.report import facts, tables
  from selsync_jax.training import layouts

  def row(plan, memory):
    sizes = {
      'between': plan.between,
      'within': plan.within,
      **memory._asdict(),
      'memory': memory.total,
    }
    cells = {
      'step': (plan.step, f'{1e3 * plan.step:.2f}'),
      'LSSR': (plan.lssr, f'{plan.lssr:.3f}'),
      **{name: (size, facts.size(size)) for name, size in sizes.items()},
    }
    return {name: tables.Cell(*cell) for name, cell in cells.items()}

  rows = {layouts.name(p.layout): row(p, m) for p, m in fits.items()}
  tables.show(rows, corner='layout', spare=DETAILS)


def _print_others(
  lacking: Mapping[str, float], refused: Mapping[str, str]
) -> None:
  """Prints why other layouts do not fit, or are impossible."""
  from selsync_jax.report import facts

  names = collections.defaultdict(list)
  for name, reason in refused.items():
    names[reason].append(name)
  for name, nbytes in lacking.items():
    print(f'{name}: does not fit, lacks {facts.size(nbytes)} per device')
  for reason, each in names.items():
    print(f'{", ".join(each)}: {reason}')
