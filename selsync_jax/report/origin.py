"""The provenance of a run, in a line for the foot of a page."""

from collections.abc import Mapping
import datetime
from typing import Any

from selsync_jax.runs.history import Run


def line(run: Run) -> str:
  """Describes the last session of a run; empty if none was recorded."""
  if not run.sessions:
    return ''
  *earlier, last = run.sessions
  began = datetime.datetime.fromisoformat(last['began'])
  devices = last['devices']
  parts = [
    f'{run.name}: {began:%Y-%m-%d %H:%M} UTC',
    f'session {len(run.sessions)}, from step {last["step"]:,}'
    if earlier
    else '',
    ', '.join(f'{name} {text}' for name, text in last['versions'].items()),
    *map(_commit, last['code'].values()),
    f'{devices["count"]} devices ({devices["kind"]}) of {last["host"]}',
    last['command'],
  ]
  return '; '.join(filter(None, parts))


def _commit(repository: Mapping[str, Any]) -> str:
  changed = ', with changes' if repository['modified'] else ''
  return f'commit {repository["commit"][:12]}{changed}'
