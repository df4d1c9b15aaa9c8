"""Selective synchronization for data-parallel training in JAX.

The names here are imported on first use, so that a command can read its flags
before it loads JAX. Those of a loop of your own need no TensorFlow. `load` and
`register_*` need what the extra `train` installs.
"""

import importlib
from typing import Any, TYPE_CHECKING

if TYPE_CHECKING:  # The names in `_NAMES` again, for type checkers.
  from selsync_jax.data.own import register_dataset as register_dataset
  from selsync_jax.devices.layout import Layout as Layout
  from selsync_jax.methods import register_method as register_method
  from selsync_jax.models import register_model as register_model
  from selsync_jax.models.tasks import register_task as register_task
  from selsync_jax.runs.export import load as load
  from selsync_jax.runs.writers import register_writer as register_writer
  from selsync_jax.runs.writers import Writer as Writer
  from selsync_jax.sync.averagers import Averager as Averager
  from selsync_jax.sync.averagers import mean as mean
  from selsync_jax.sync.averagers import no_averaging as no_averaging
  from selsync_jax.sync.averagers import outer as outer
  from selsync_jax.sync.averagers import subset_mean as subset_mean
  from selsync_jax.sync.budget import budgeted as budgeted
  from selsync_jax.sync.change import measure as measure
  from selsync_jax.sync.change import MeasureState as MeasureState
  from selsync_jax.sync.consensus import AXIS as AXIS
  from selsync_jax.sync.consensus import consensus as consensus
  from selsync_jax.sync.consensus import synchronize as synchronize
  from selsync_jax.sync.fda import fda as fda
  from selsync_jax.sync.fda import FDAState as FDAState
  from selsync_jax.sync.inner import in_use as in_use
  from selsync_jax.sync.periods import post_local as post_local
  from selsync_jax.sync.periods import qsr as qsr
  from selsync_jax.sync.reducers import all_reduce as all_reduce
  from selsync_jax.sync.reducers import at_sync as at_sync
  from selsync_jax.sync.selsync import selsync as selsync
  from selsync_jax.sync.selsync import SelSyncState as SelSyncState
  from selsync_jax.sync.strategy import Strategy as Strategy
  from selsync_jax.sync.traffic import Collective as Collective
  from selsync_jax.sync.transformation import Reducer as Reducer
  from selsync_jax.sync.transformation import Trigger as Trigger
  from selsync_jax.sync.triggers import any_of as any_of
  from selsync_jax.sync.triggers import at_least_every as at_least_every
  from selsync_jax.sync.triggers import at_most_every as at_most_every
  from selsync_jax.sync.triggers import every as every
  from selsync_jax.sync.wires import Wire as Wire

__version__ = '0.1.0'  # pyproject.toml reads it here.

# By the module that defines them.
_NAMES = {
  'data.own': ('register_dataset',),
  'devices.layout': ('Layout',),
  'methods': ('register_method',),
  'models': ('register_model',),
  'models.tasks': ('register_task',),
  'runs.export': ('load',),
  'runs.writers': ('register_writer', 'Writer'),
  'sync.averagers': (
    'Averager',
    'mean',
    'no_averaging',
    'outer',
    'subset_mean',
  ),
  'sync.budget': ('budgeted',),
  'sync.change': ('measure', 'MeasureState'),
  'sync.consensus': ('AXIS', 'consensus', 'synchronize'),
  'sync.fda': ('fda', 'FDAState'),
  'sync.inner': ('in_use',),
  'sync.periods': ('post_local', 'qsr'),
  'sync.reducers': ('all_reduce', 'at_sync'),
  'sync.selsync': ('selsync', 'SelSyncState'),
  'sync.strategy': ('Strategy',),
  'sync.traffic': ('Collective',),
  'sync.transformation': ('Reducer', 'Trigger'),
  'sync.triggers': ('any_of', 'at_least_every', 'at_most_every', 'every'),
  'sync.wires': ('Wire',),
}
_MODULES = {name: module for module in _NAMES for name in _NAMES[module]}


def __getattr__(name: str) -> Any:
  """Imports a name from its module, on first use."""
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  module = importlib.import_module(f'selsync_jax.{_MODULES[name]}')
  globals()[name] = getattr(module, name)
  return globals()[name]


def __dir__() -> list[str]:
  return sorted([*globals(), *_MODULES])
