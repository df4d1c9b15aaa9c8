"""Renamed parts, parameters and fields: old name to new name.

An old name raises one line with the new name.
"""

from collections.abc import Container
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


def hint(old: Any, known: Container[Any]) -> str:
  """Returns words with the new name of an old one, if `known` has it."""
  new = NAMES.get(old) if isinstance(old, str) else None
  return f'; {old} is {new} now' if new in known else ''
