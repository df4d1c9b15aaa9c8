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


def main(arguments: Sequence[str]) -> None:
  """Records gradient changes, then prints and draws the suggested delta."""
  line = flags.CommandLine('delta', config=config_file.DEFAULT)
  line.flag('steps', 'Steps of each recording.', flags.whole(1), '200')
  line.flag('lssr', 'Wanted LSSR (local steps / steps).', flags.lssr, '0.9')
  line.flag('out', 'Folder. Default: runs/delta-CONFIG.', flags.folder)
  options = line.parse(arguments)
  config, lssr = config_file.load(options.file, options.fields), options.lssr
  _check(config, options.file, lssr, options.steps)
  from selsync_jax.devices import backend

  backend.start(
    config.device, workers=config.workers, mapper=config.mapper, **config.mesh
  )
  # Importing TensorFlow is slow; mistakes were reported above.
  from selsync_jax.training import delta_search

  choice = delta_search.choose(config, lssr, options.steps)
  table = [
    ['delta', 'LSSR by BSP', 'LSSR as tried'],
    *([f'{x}', f'{bsp:.2f}', f'{own:.2f}'] for x, bsp, own in choice.rows()),
  ]
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
  from selsync_jax.report import delta_page  # Imports matplotlib.

  curves = {'by BSP': choice.bsp.curve(), 'as tried': choice.tried.curve()}
  plotted = delta_page.plot(lssr, delta, choice.tried.lssr(delta), curves)
  title = f'delta {delta} for an LSSR of {lssr:g}'
  subtitle = (
    f'{options.file}; by {len(choice.deltas)} recordings of '
    f'{len(choice.bsp.deciding)} steps'
  )
  name = f'delta-{config_file.names(options.file)[0]}'
  folder = options.out or pathlib.Path('runs', name)
  print(delta_page.write(title, subtitle, plotted, table, folder))


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
  late = strategy.averager.steps_late
  if lssr < 1 - 1 / max(late, 1) - threshold.ROUNDING:
    raise ConfigError(
      f'--lssr={lssr:g}: config.sync.delay allows {1 - 1 / late:.3g} at least, '
      f'one average in {late} steps'
    )
  limit = threshold.max_lssr(max_period, vote_every)
  if lssr > limit + threshold.ROUNDING:
    raise ConfigError(
      f'--lssr={lssr:g}: config.sync.max_period={max_period} allows '
      f'{limit:.3g} at most'
    )
