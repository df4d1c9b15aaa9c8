"""The runs that a search may try: a workload, with any method and any fields.

A method is `NAME`, or `NAME+FIELD=VALUE+...`, as in a comparison; fields are
given by their dotted names.
"""

from collections.abc import Mapping
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple, TYPE_CHECKING

from selsync_jax.cluster import children
from selsync_jax.commands import config_file, flags
from selsync_jax.config import ConfigError, RunError

if TYPE_CHECKING:
  from selsync_jax.runs.history import Trial
  from selsync_jax.training.settings import Settings

_RATE = 'optimizer.learning_rate'


class Candidates(NamedTuple):
  """The runs of a config file that names no method."""

  file: str  # The config file, perhaps with a variant.
  fields: list[str]  # The arguments that change it, for all runs.
  out: pathlib.Path  # The folder of the runs.

  @property
  def fixed(self) -> set[str]:
    """The names of the fields that are set for all runs."""
    found = (flags.FIELD.fullmatch(field) for field in self.fields)
    return {match[2] for match in found if match}

  @property
  def own_method(self) -> str:
    """The config file's method if no method is named."""
    return config_file.load(self.file.partition(':')[0], []).sync.method

  @property
  def seed(self) -> int:
    """The config's seed."""
    return self.settings('bsp', {}).config.seed

  def settings(self, spec: str, fields: Mapping[str, Any]) -> 'Settings':
    """Returns the settings of a run.

    Raises `ConfigError` if the fields contradict each other.
    """
    from selsync_jax.commands import trials  # Imports NumPy.

    method, *own = _with(spec, fields).split('+')
    settings = config_file.settings(
      config_file.with_method(self.file, method),
      [*self.fields, *(f'--config.{field}' for field in own)],
    )
    try:
      trials.check(settings, simulate=False)
    except ConfigError as error:
      raise ConfigError(f'{spec}: {error}') from error
    return settings

  def trials(
    self, spec: str, fields: Mapping[str, Any], seeds: int, first: int
  ) -> list['Trial']:
    """Returns runs with seeds from `first` on; may raise `ConfigError`."""
    from selsync_jax.commands import trials  # Imports NumPy.

    own = {k: value for k, value in fields.items() if k != _RATE}
    return trials.list_trials(
      self.file,
      [*self.fields, f'--config.seed={first}'],
      [_with(spec, own)],
      self.out,
      learning_rates=[lambda _: fields[_RATE]] if _RATE in fields else [],
      seeds=seeds,
    )

  def step_seconds(self, spec: str, fields: Mapping[str, Any]) -> float:
    """Measures the seconds of one worker's step.

    A child process measures it, so that this process uses no device.
    """
    given = json.dumps([self.file, self.fields, spec, fields])
    child = children.start(
      [sys.executable, '-m', __name__, given],
      {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      preexec_fn=children.end_with_parent,
    )
    said, errors = child.communicate()
    if child.returncode:
      *_, last = errors.splitlines() or ['nothing']
      raise RunError(f'{spec}: a step could not be measured: {last}')
    return float(said)

  def recipe(self, trial: 'Trial', about: str) -> str:
    """Returns a config file with the config of a run, except its seed."""
    flag, *fields = trial.flags
    file = flag.removeprefix('--config=')
    path, colon, variant = file.partition(':')
    found = pathlib.Path(config_file.find(file)).resolve()
    if found.parent != config_file.OWN:
      path = str(found)
    lines = [
      *(f'# {line}' for line in about.splitlines()),
      'from selsync_jax.commands import config_file',
      *('', '', 'def get_config():'),
      f'  return config_file.load({path + colon + variant!r}, [',
      *(f'    {f!r},' for f in fields if not f.startswith('--config.seed=')),
      *('  ])', ''),
    ]
    return '\n'.join(lines)


def _with(spec: str, fields: Mapping[str, Any]) -> str:
  """Adds fields to a method; a value may contain more: `4+B=0.5`."""
  return '+'.join([spec, *(f'{k}={value}' for k, value in fields.items())])


_STEPS = 20  # The number of measured steps.


def _measure(given: str) -> float:
  from selsync_jax.devices import backend
  from selsync_jax.training import step_cost

  file, arguments, spec, fields = json.loads(given)
  candidates = Candidates(file, arguments, pathlib.Path())
  config = candidates.settings(spec, fields).config
  backend.start(config.device)
  return step_cost.measure(config, _STEPS).seconds


if __name__ == '__main__':
  print(_measure(*sys.argv[1:]))
