"""Renamed parts, parameters and fields: old name to new name.

An old name raises one line with the new name. The config of an old run is
translated when it is read.
"""

from collections.abc import Container, Mapping
import re
from typing import Any

NAMES = {
  'ahead': 'extrapolate',
  'at_least_every': 'max_interval',
  'at_most_every': 'min_interval',
  'check_replicas': 'check_replicas_every',
  'cluster': 'virtual_cluster',
  'every_kth': 'interleave',
  'lag': 'vote_delay',
  'local': 'mix',
  'moments': 'optimizer_state',
  'own': 'keep',
  'seconds': 'print_every_seconds',
}
"""The new names of parts, parameters and fields, by old name."""

_FIELDS = (
  r'(check_replicas|cluster|log\.seconds'
  r'|sync\.(.*\.)?delay\.(own|ahead|local)|sync\.trigger\.(.*\.)?lag)'
)
"""A pattern of the dotted names of fields that were renamed."""

_PARTS = 'at_least_every', 'at_most_every', 'every_kth'


def hint(old: Any, known: Container[Any]) -> str:
  """Returns words with the new name of an old one, if `known` has it."""
  new = NAMES.get(old) if isinstance(old, str) else None
  return f'; {old} is {new} now' if new in known else ''


def config(saved: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a saved config with current names.

  Only a trainer's config, which has a mapper, uses this package's names.

  Example:
    >>> config({'mapper': 'pmap', 'log': {'seconds': 30}})
    {'mapper': 'pmap', 'log': {'print_every_seconds': 30}}
    >>> config({'log': {'seconds': 30}})
    {'log': {'seconds': 30}}
  """
  return _translated(saved, '') if 'mapper' in saved else dict(saved)


def _translated(saved: Mapping[str, Any], path: str) -> dict[str, Any]:
  return {
    _current(f'{path}{name}', saved): (
      _translated(value, f'{path}{name}.')
      if isinstance(value, Mapping)
      else NAMES[value]
      if value in _PARTS and path.startswith('sync.')
      else value
    )
    for name, value in saved.items()
  }


def _current(path: str, siblings: Mapping[str, Any]) -> str:
  """Returns the current name of the last component of a dotted path."""
  name = path.rpartition('.')[2]
  of_selsync = path == 'sync.lag' and siblings.get('method') == 'selsync'
  return NAMES[name] if re.fullmatch(_FIELDS, path) or of_selsync else name
