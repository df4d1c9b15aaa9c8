"""Suggest a delta for a wanted LSSR.

  selsync delta --config=configs/digits.py --steps=200 --lssr=0.9

prints LSSR for several deltas and the suggestion, and writes `delta.html` and
`plots/delta.png`. See `selsync_jax.training.delta_search` for the method.
"""

from collections.abc import Sequence
import pathlib
from typing import TYPE_CHECKING

from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.config import config_errors
from selsync_jax.config import ConfigError

if TYPE_CHECKING:
  import ml_collections

  from selsync_jax.training.delta_search import Choice


def main(arguments: Sequence[str]) -> None:
  """Records gradient changes, then prints and draws the suggested delta."""
  line = flags.CommandLine('delta', config=config_file.DEFAULT)
  line.flag('steps', flags.whole(1), '200', 'Steps of each recording.')
  line.flag('lssr', flags.lssr, '0.9', 'Wanted LSSR (local steps / steps).')
  line.flag('out', flags.folder, None, 'Folder. Default: runs/delta-CONFIG.')
  options = line.parse(arguments)
  config, lssr = config_file.load(options.file, options.fields), options.lssr
  _check(config, options.file, lssr, options.steps)
  from selsync_jax.devices import backend

  backend.start(
    config.device,
    workers=config.workers,
    mapper=config.mapper,
    **config.mesh,
  )
  # Importing TensorFlow is slow; mistakes were reported above.
  from selsync_jax.training import delta_search

  choice = delta_search.choose(config, lssr, options.steps)
  table = _table(choice)
  for row in table:
    print(''.join(f'{cell:>16}' for cell in row))
  *tried, delta = choice.deltas
  print(
    f'\ntried: {", ".join(map(str, tried))}\n'
    f'for an LSSR of {lssr:g}: --config.sync.delta={delta}'
  )
  if choice.steepness > delta_search.STEEP:
    print(
      'LSSR is steep there: 1 % of delta changes it by '
      f'{choice.steepness:.2f}, and runs may differ by as much; a larger '
      'sync.smoothing makes it less steep'
    )
  steps_each = len(choice.bsp.deciding)
  recordings = f'{len(choice.deltas)} recordings of {steps_each} steps'
  name = f'delta-{config_file.stem(options.file)}'
  folder = options.out or pathlib.Path('runs', name)
  subtitle = f'{options.file}; by {recordings}'
  print(_write_page(choice, lssr, table, subtitle, folder))


def _check(
  config: 'ml_collections.ConfigDict', name: str, lssr: float, steps: int
) -> None:
  """Raises `ConfigError` if no recording can show a delta for the LSSR."""
  from selsync_jax import methods
  from selsync_jax.training import threshold

  sync = config.sync
  if sync.get('trigger'):
    raise ConfigError(
      f'config.sync.trigger={sync.trigger.to_dict()}: delta looks for the '
      "delta of the method's own trigger; set its fields in config.sync"
    )
  if 'delta' not in sync:
    raise ConfigError(f'--config={name}: method {sync.method} has no delta')
  with config_errors('sync'):
    strategy = methods.create_strategy(
      context=methods.Context(1, config.seed),
      **sync.to_dict() | {'delta': 0.0},  # The delta of the first recording.
    )
  max_period = sync.get('max_period')
  vote_every = strategy.trigger.traits.spacing
  if steps < 2 * vote_every:  # The first vote passes for any delta.
    raise ConfigError(
      f'--steps={steps}: must be at least {2 * vote_every}, two votes with '
      f'config.sync.vote_every={vote_every}'
    )
  limit = threshold.max_lssr(max_period, vote_every)
  if lssr > limit + threshold.ROUNDING:
    raise ConfigError(
      f'--lssr={lssr:g}: config.sync.max_period={max_period} allows '
      f'{limit:.3g} at most'
    )


def _table(choice: 'Choice') -> list[list[str]]:
  rows = [
    [f'{delta}', f'{bsp:.2f}', f'{tried:.2f}']
    for delta, bsp, tried in choice.rows()
  ]
  return [['delta', 'LSSR by BSP', 'LSSR as tried'], *rows]


def _write_page(
  choice: 'Choice',
  wanted: float,
  table: list[list[str]],
  subtitle: str,
  out: pathlib.Path,
) -> pathlib.Path:
  from selsync_jax.report import delta_page  # Imports matplotlib.

  suggestion = delta_page.Suggestion(
    wanted=wanted,
    delta=choice.delta,
    lssr=choice.tried.lssr(choice.delta),
    curves={'by BSP': choice.bsp.curve(), 'as tried': choice.tried.curve()},
  )
  return delta_page.write(suggestion, table, subtitle, out)
