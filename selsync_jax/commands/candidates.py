"""The runs that a search may try: a workload, with any method and any fields.

A method is `NAME`, or `NAME+FIELD=VALUE+...`, as in a comparison; fields are
given by their dotted names.
"""

from collections.abc import Mapping
import concurrent.futures
import multiprocessing
import pathlib
from typing import Any, NamedTuple, TYPE_CHECKING

from selsync_jax.commands import config_file
from selsync_jax.commands import flags

if TYPE_CHECKING:
  from selsync_jax.runs.history import Trial
  from selsync_jax.training.settings import Settings

_RATE = 'optimizer.learning_rate'


class Candidates(NamedTuple):
  """The runs of a config file that names no method."""

  file: str  # Of the config, perhaps with a variant.
  fields: list[str]  # The arguments that change it, for all runs.
  out: pathlib.Path  # The folder of the runs.

  @property
  def fixed(self) -> set[str]:
    """The names of the fields that are set for all runs."""
    found = (flags.FIELD.fullmatch(field) for field in self.fields)
    return {match[2] for match in found if match}

  @property
  def own_method(self) -> str:
    """The method that the config file has if none is named."""
    return config_file.load(self.file.partition(':')[0], []).sync.method

  @property
  def seed(self) -> int:
    """The config's seed."""
    return self.settings('bsp', {}).config.seed

  def settings(self, spec: str, fields: Mapping[str, Any]) -> 'Settings':
    """Returns the settings of a run.

    Raises `ConfigError` if its fields cannot be together.
    """
    from selsync_jax.training import setup  # Imports JAX.

    method, *own = spec.split('+')
    given = [f'--config.{field}' for field in own]
    settings = config_file.settings(
      config_file.with_method(self.file, method),
      [*self.fields, *given, *config_file.arguments(fields)],
    )
    config_file.refuse_simulation(settings.config)
    setup.draft(settings)
    return settings

  def trials(
    self, spec: str, fields: Mapping[str, Any], seeds: int, first: int
  ) -> list['Trial']:
    """Returns runs with seeds from `first` on; may raise `ConfigError`."""
    from selsync_jax.commands import trials  # Imports NumPy.

    own = [f'{k}={value}' for k, value in fields.items() if k != _RATE]
    return trials.list_trials(
      self.file,
      [*self.fields, f'--config.seed={first}'],
      ['+'.join([spec, *own])],
      self.out,
      learning_rates=[lambda _: fields[_RATE]] if _RATE in fields else [],
      seeds=seeds,
    )

  def step_seconds(self, spec: str, fields: Mapping[str, Any]) -> float:
    """Measures a step of one worker.

    It does so in another process, so that this one holds no device.
    """
    spawn = multiprocessing.get_context('spawn')
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as process:
      return process.submit(_measure, self, spec, dict(fields)).result()

  def recipe(self, trial: 'Trial', about: str) -> str:
    """Returns a config file with the config of a run, but for its seed."""
    flag, *fields = trial.flags
    path, colon, variant = flag.removeprefix('--config=').partition(':')
    if pathlib.Path(path).is_file():  # Not the name of one of our own.
      path = str(pathlib.Path(path).resolve())
    lines = [
      *(f'# {line}' for line in about.splitlines()),
      'from selsync_jax.commands import config_file',
      *('', '', 'def get_config():'),
      f'  return config_file.load({path + colon + variant!r}, [',
      *(f'    {f!r},' for f in fields if not f.startswith('--config.seed=')),
      *('  ])', ''),
    ]
    return '\n'.join(lines)


_STEPS = 20  # The steps to measure one with.


def _measure(
  candidates: Candidates, spec: str, fields: Mapping[str, Any]
) -> float:
  from selsync_jax.devices import backend
  from selsync_jax.training import step_cost

  config = candidates.settings(spec, fields).config
  backend.start(config.device)
  return step_cost.measure(config, _STEPS).seconds
