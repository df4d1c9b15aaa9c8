"""Show what the islands of a run are doing.

  selsync status INVITATION

asks their coordinator, and prints how often islands have come and gone, how
many averages they have applied, how often they have repeated an exchange,
because one had ended, and how many votes they have not waited for. A row for
each island has the last step that it has taken; the megabytes that it has sent
and received, and those per second in the last minute; and the seconds since its
last sign of life. The invitation may also stand in the environment, as
SELSYNC_INVITATION.
"""

from collections.abc import Iterator, Mapping, Sequence
import json
import os
from typing import Any

from selsync_jax.commands import flags
from selsync_jax.config import ConfigError, Positive

HEAD = 'island', 'step', 'MB out', 'MB/s', 'MB in', 'MB/s', 'silent'


def main(arguments: Sequence[str]) -> None:
  """Asks the coordinator, and prints its answer."""
  line = flags.CommandLine('status', positional='[INVITATION]')
  line.switch('json', 'Print one line of JSON.')
  about = 'Seconds until the coordinator must answer.'
  line.flag('timeout', about, flags.of(Positive), '10')
  options = line.parse(arguments)
  own = os.environ.get('SELSYNC_INVITATION')
  given = options.positional or ([own] if own else [])
  if len(given) != 1:
    raise ConfigError(f'needs one INVITATION, got {len(given)}')
  from selsync_jax.islands import credentials  # Imports cryptography.

  invited = credentials.Invitation.parse(given[0])
  content, _, _ = credentials.ask(invited, 'status', options.timeout)
  found = json.loads(content)
  print(json.dumps(found) if options.json else '\n'.join(_lines(found)))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
  """Yields the totals, and then a table of the islands."""
  share = f'{found["present"]} of {found["expected"]} islands train'
  mean = found['mean_participation']
  if mean is not None:
    share += f'; {mean:.1%} on average'
  yield f'{share}; generation {found["generation"]}'
  counts = (f'{found[kind]} {kind}' for kind in ('admitted', 'left', 'ended'))
  yield f'{", ".join(counts)}; steps differ by {found["step_spread"]}'
  averages, aborts, guesses, mistakes = (
    max((island.get(kind, 0) for island in found['islands']), default=0)
    for kind in ('averages', 'aborts', 'guesses', 'mistakes')
  )
  line = f'{averages} averages, {aborts} aborts'
  if guesses:
    line += f', {guesses} votes not waited for, {mistakes} steps repeated'
  yield line
  yield ''
  rows = [HEAD, *map(_cells, found['islands'])]
  full = [row for row in rows if len(row) == len(HEAD)]
  widths = [max(map(len, column)) for column in zip(*full, strict=True)]
  first = max(len(row[0]) for row in rows)
  each = found['islands']
  waits = {row['name']: row['waits'] for row in each if 'waits' in row}
  for name, *cells in rows:
    if len(cells) > 1:
      cells = map(str.rjust, cells, widths[1:])
    yield '  '.join([name.ljust(first), *cells])
    if name in waits:
      yield f'  {waits[name]}'


def _cells(island: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns the row of an island, with two cells if it does not train."""
  if island['state'] != 'trains':
    return island['name'], island.get('why', island['state'])
  numbers = [
    f'{island[f"{way}_bytes{per}"] / 1e6:.1f}'
    for way in ('sent', 'received')
    for per in ('', '_per_second')
  ]
  silent = f'{island["silent_seconds"]:.0f} s'
  return island['name'], str(island['step']), *numbers, silent
