"""Search for the method and settings that serve a network best.

  selsync tune --config=configs/digits.py --bandwidth=1Gbit --trials=60

tries settings of the methods, and as many settings of BSP; every trial is a run
as in `compare`. The best trial is trained again with other seeds, next to the
best trial of BSP, and written as a config file.
"""

import argparse
from collections.abc import Callable, Sequence
import functools
import math
import pathlib
import shlex
from typing import TYPE_CHECKING

from selsync_jax.commands import compare, config_file, flags
from selsync_jax.commands.candidates import Candidates
from selsync_jax.config import ConfigError, Count, Positive

if TYPE_CHECKING:
  from selsync_jax.tune.space import Load, Space

BSP = 'bsp'
GRADIENTS = 'sync.averager=mean+sync.reducer=all_reduce+sync.period=1000000'
"""Fields that make a method BSP: every gradient is averaged, parameters never.
"""
METHODS = (
  'selsync,local_sgd,partial,muloco+sync.averager=mean,diloco,sparse_loco,'
  'noloco,sparta,fedadagrad,power_sgd'
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
  """Parses the command line; adds the `candidates` and their `spaces`."""
  line = flags.CommandLine('tune', config=config_file.DEFAULT)
  about = 'Methods besides BSP, as in compare. Default: see docs/tune.md.'
  line.flag('methods', about, flags.names)
  line.flag('space', 'TOML file of the values to choose from.', pathlib.Path)
  about = 'Bandwidth of each link, per direction; 1GB/s is in bytes.'
  line.flag('bandwidth', about, flags.bandwidth, '1Gbit')
  line.flag('latency', 'One-way latency of a message.', flags.latency, '1ms')
  about = "Score to reach as soon as possible. Default: BSP's."
  line.flag('target', about, flags.of(float))
  about = 'Or find the best score within these seconds on the network.'
  line.flag('seconds', about, flags.of(Positive))
  about = 'Or find the best score within these bytes sent per worker: 10MB.'
  line.flag('bytes', about, flags.size)
  about = 'Trials of the methods, and of BSP.'
  line.flag('trials', about, flags.of(Count), '60')
  about = 'Number of new seeds for the best trials.'
  line.flag('seeds', about, flags.of(Count), '3')
  about = 'Number of best trials to compare by other seeds.'
  line.flag('finalists', about, flags.of(Count), '3')
  line.flag('jobs', 'Runs at a time.', flags.of(Count), '1')
  about = 'Compute time of a step: 5ms. Default: measured.'
  line.flag('step', about, flags.duration)
  line.flag('out', 'Folder. Default: runs/tune-CONFIG.', flags.folder)
  options = line.parse(arguments)
  names = 'target', 'seconds', 'bytes'
  given = [f'--{n}' for n in names if getattr(options, n) is not None]
  if len(given) > 1:
    raise ConfigError(f'{", ".join(given)}: give one of them')
  compare.refuse_method(options.file)
  options.line = shlex.join(['selsync', 'tune', *arguments])
  name = '-'.join(['tune', *config_file.names(options.file)])
  out = options.out or pathlib.Path('runs', name)
  options.candidates = Candidates(options.file, options.fields, out)
  mesh = options.candidates.settings(BSP, {}).config.mesh
  if math.prod(mesh.values()) > 1:
    raise ConfigError(
      f'config.mesh={mesh.to_dict()}: tune supports one device per worker'
    )
  options.spaces = _spaces(options)
  return options


def _spaces(options: argparse.Namespace) -> dict[str, 'Space']:
  """Returns the space of each search, by the search's name."""
  from selsync_jax.tune import (
    choices,
    space,  # Imports JAX.
  )

  given = choices.read(options.space) if options.space else {}
  methods = options.methods or [m for m in given if m not in (choices.ALL, BSP)]
  methods = methods or flags.names(METHODS)
  if methods == ['all']:
    methods = compare.able_methods(options.file, options.fields)
  methods = [method for method in methods if method != BSP]
  if not methods:
    raise ConfigError(f'--methods={BSP}: must name a method besides BSP')
  load, fixed = options.candidates.settings, options.candidates.fixed
  of_bsp = _of_bsp(methods, load)
  known = [choices.ALL, *of_bsp, *methods]
  for method in given:
    if method not in known:
      raise ConfigError(
        f'--space={options.space}: [{method}] is not one of {", ".join(known)}'
      )
  own = options.candidates.own_method
  load(own, {})  # This method is trained in the end.
  methods.sort(key=lambda spec: spec != own)  # It comes first.
  spaces = {
    BSP: space.build(of_bsp, load, fixed | space.OF_AVERAGES, given),
    'methods': space.build(methods, load, fixed, given),
  }
  of_all = given.get(choices.ALL, {})
  space.check_used(spaces.values(), load, fixed, of_all)
  return spaces


def _of_bsp(methods: Sequence[str], load: 'Load') -> list[str]:
  """Returns BSP with the config's optimizer and with every method's."""

  @functools.cache
  def optimizer(method):
    return load(method, {}).config.optimizer.name

  found = {optimizer(BSP): BSP}
  for method in methods:
    if optimizer(method) not in found:
      name, *own = method.split('+')
      is_own = optimizer(name) != optimizer(BSP)
      given = [field for field in own if field.startswith('optimizer.')]
      spec = [name, GRADIENTS, *given] if is_own else [BSP, *given]
      found[optimizer(method)] = '+'.join(spec)
  return list(found.values())


def main(
  arguments: Sequence[str], run: Callable[..., None] | None = None
) -> None:
  """Searches, trains the best trials again, and writes the recipe.

  `run` trains a trial; by default it is `run` of `pool.Processes`.
  """
  options = parse(arguments)
  from selsync_jax.commands import tuning  # Imports JAX.

  tuning.tune(options, run)
