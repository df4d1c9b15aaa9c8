"""Names that were others once. An old one ends in a line with the new one.

A run keeps the names of its time: `config` says them anew when it is read.
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
"""The new names of parts, of their parameters, and of fields."""

_FIELDS = (
  r'(check_replicas|cluster|log\.seconds'
  r'|sync\.(.*\.)?delay\.(own|ahead|local)|sync\.trigger\.(.*\.)?lag)'
)
"""Where a field's name has changed in a config, by dotted names."""

_PARTS = 'at_least_every', 'at_most_every', 'every_kth'


def hint(old: Any, known: Container[Any]) -> str:
  """Returns words that name what an old name is now, if that is known."""
  new = NAMES.get(old) if isinstance(old, str) else None
  return f'; {old} is {new} now' if new in known else ''


def config(saved: Mapping[str, Any], path: str = '') -> dict[str, Any]:
  """Returns a saved config under the names of today.

  Example:
    >>> config({'log': {'seconds': 30}, 'sync': {'method': 'lag', 'own': 1}})
    {'log': {'print_every_seconds': 30}, 'sync': {'method': 'lag', 'own': 1}}
  """
  return {
    _now(f'{path}{name}', saved): (
      config(value, f'{path}{name}.')
      if isinstance(value, Mapping)
      else NAMES[value]
      if value in _PARTS and path.startswith('sync.')
      else value
    )
    for name, value in saved.items()
  }


def _now(path: str, siblings: Mapping[str, Any]) -> str:
  """Returns the last name of a dotted path, as it is today."""
  name = path.rpartition('.')[2]
  of_selsync = str(siblings.get('method')).startswith('selsync')
  is_old = re.fullmatch(_FIELDS, path) or (path == 'sync.lag' and of_selsync)
  return NAMES[name] if is_old else name
