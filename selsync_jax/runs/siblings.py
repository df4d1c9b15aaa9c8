"""The search for a comparable run under BSP."""

from collections.abc import Mapping
import contextlib
import glob
import pathlib
from typing import Any

from selsync_jax.config import ConfigError
from selsync_jax.config import RunError
from selsync_jax.runs import files
from selsync_jax.runs import history
from selsync_jax.runs import records
from selsync_jax.runs.history import Run

# Sections of a config that do not change what is trained.
_IRRELEVANT = ('sync', 'checkpoint', 'log')


def find_bsp(run: Run) -> Run | None:
  """Returns a run of BSP with otherwise the same config, if there is one.

  It searches the folders beside the run. In a comparison, whose folders are
  METHOD/SEED, it also searches those of the same seed under other methods.
  """
  if run.config['sync']['method'] == 'bsp':
    return None
  workdir = run.workdir.resolve()
  folders = [
    *sorted(workdir.parent.glob('*/')),
    *sorted(workdir.parent.parent.glob(f'*/{glob.escape(workdir.name)}/')),
  ]
  return next(filter(None, (_bsp_like(run, each) for each in folders)), None)


def _bsp_like(run: Run, folder: pathlib.Path) -> Run | None:
  with contextlib.suppress(files.DamagedFile, ConfigError, RunError, OSError):
    config = records.read_config(folder)
    if config is None or history.composition(config['sync']) != 'bsp':
      return None
    if _relevant(config) == _relevant(run.config):
      other = history.read(folder)
      return other if other.is_simulated == run.is_simulated else None
  return None


def _relevant(config: Mapping[str, Any]) -> dict[str, Any]:
  return {k: v for k, v in config.items() if k not in _IRRELEVANT}
