"""A run in words and numbers: its score, costs, settings and provenance."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import datetime
from typing import Any

from selsync_jax.fields import FIELDS as DECLARED
from selsync_jax.report import significance, tables
from selsync_jax.report.tables import Cell, NONE, Table
from selsync_jax.runs import history
from selsync_jax.runs.history import Run


def size(count: float) -> str:
  """Formats a number of bytes with an SI prefix.

  >>> size(999_400), size(999_600)
  ('999 kB', '1 MB')
  """
  for unit in ('B', 'kB', 'MB', 'GB'):
    if count < 999.5:  # Otherwise it would be rounded to 1e+03.
      return f'{count:.3g} {unit}'
    count /= 1000
  return f'{count:.3g} TB'


FIELDS = {
  'steps': ('steps', ',.0f'),
  'sync_steps': ('synchronizations', ',.0f'),
  'lssr': ('LSSR (local steps / steps)', '.3f'),
  'bytes_per_worker': ('bytes sent per worker', 'B'),
  'injection_bytes': ('of these, examples injected', 'B'),
  'bytes_per_worker_bsp': ('the same run under BSP', 'B'),
  'seconds': ('seconds', '.1f'),
  'virtual_seconds': ('virtual seconds', ',.1f'),
  'waited': ('of these, waiting for other workers', ',.1f'),
  'staleness': ('mean staleness of gradients', '.2f'),
  'samples_per_second': ('samples/s', ',.0f'),
  **dict.fromkeys(('local_steps', 'skipped', 'samples'), ('', ',.0f')),
}
"""Fields of summary.json besides scores: the name in the table of a run, empty
if it is not shown, and the format; `B` is a size."""
# The words for fields of a config.
_SETTING = {
  'data.name': '{}',
  'workers': '{} workers',
  'data.partition': 'partition {}',
  'model.name': 'model {}',
}


def facts(outcome: Mapping[str, Any]) -> dict[str, Cell]:
  """Returns the scores and costs of a run by name, from its `summary.json`."""
  losses = ('test_loss', 'validation_loss')
  scores = sorted(filter(history.is_score, outcome), key=losses.__contains__)
  consensus = {k: '' if k in losses else ' of the consensus' for k in scores}
  names = {k: k.replace('_', ' ') + of for k, of in consensus.items()}
  names |= {k: name for k, (name, _) in FIELDS.items() if name}
  cells = _cells(outcome)
  return {name: cells[k] for k, name in names.items() if k in cells}


def _cells(outcome: Mapping[str, Any]) -> dict[str, Cell]:
  """Returns the known numbers of `summary.json` by field."""
  return {
    k: Cell(value, size(value) if form(k) == 'B' else f'{value:{form(k)}}')
    for k, value in outcome.items()
    if isinstance(value, int | float)
  }


def form(field: str) -> str:
  """Returns the format of a field of summary.json; see `FIELDS`."""
  return FIELDS[field][1] if field in FIELDS else '.4f'


def show(outcome: Mapping[str, Any]) -> None:
  """Prints the table of a summary with a title, or of its scores alone."""
  title = None
  if 'method' in outcome:
    title = f'{outcome["method"]}, {outcome["workers"]} workers'
  rows = {name: {'': cell} for name, cell in facts(outcome).items()}
  tables.show(rows, title, corner=None)


def summary(runs: Sequence[Run]) -> Table:
  """Returns the scores and costs of runs."""
  return _beside({run.name: facts(run.outcome) for run in runs})


def key_figures(run: Run) -> Iterator[tuple[str, Cell, Sequence[Cell | str]]]:
  """Yields name, number and remark of the most important numbers of a run."""
  cell = _cells(run.outcome)
  if metric := run.metric:
    loss = cell.get('validation_loss', 'not finite')
    yield f'validation {metric}', cell[f'validation_{metric}'], ['loss ', loss]
  if 'lssr' in cell:
    of = cell['sync_steps'], ' of ', cell['steps'], ' steps synchronized'
    yield 'LSSR', cell['lssr'], of
  remark = ['BSP: known when the run is finished']
  if bsp := cell.get('bytes_per_worker_bsp'):
    remark = [bsp, ' under BSP']
  yield 'sent per worker', cell['bytes_per_worker'], remark
  if 'virtual_seconds' in cell:
    remark = [cell.get('waited', '–'), ' waiting for other workers']
    yield 'virtual seconds', cell['virtual_seconds'], remark
  else:
    remark = [cell.get('samples_per_second', '–'), ' samples/s']
    yield 'seconds of training', cell['seconds'], remark


def settings(runs: Sequence[Run]) -> tuple[Table, Table]:
  """Returns the fields of the configs, and the fields with their defaults.

  Fields in which the runs differ come first.
  """
  rows = _beside(
    {
      run.name: {k: Cell(None, _shown(v)) for k, v in run.fields.items()}
      for run in runs
    }
  )
  texts = {k: {cell.text for cell in row.values()} for k, row in rows.items()}
  default = {name: _shown(field.default) for name, field in DECLARED.items()}
  shown, folded = {}, {}
  for name in sorted(rows, key=lambda name: len(texts[name]) == 1):
    has_default = texts[name] <= {default.get(name), NONE.text}
    (folded if has_default else shown)[name] = rows[name]
  return shown, folded


def _beside(columns: Mapping[str, Mapping[str, Cell]]) -> Table:
  """Returns the table with these columns; some may lack a row."""
  names = dict.fromkeys(name for column in columns.values() for name in column)
  return {
    name: {title: column.get(name, NONE) for title, column in columns.items()}
    for name in names
  }


def _shown(value: Any) -> str:
  """Returns a field as the table shows it; a tuple is a list in JSON."""
  if value is None:
    return NONE.text
  return str(list(value) if isinstance(value, tuple) else value)


def headline(runs: Sequence[Run]) -> str:
  """Describes the result of a run, or of the best of several."""
  if len(runs) == 1:
    text = _result(runs[0])
  else:
    best = max(runs, key=lambda run: run.rank())
    datasets = {run.fields.get('data.name') for run in runs} - {None, ''}
    if len({run.goal.main for run in runs}) > 1 or len(datasets) > 1:
      return f'{len(runs)} runs of different tasks'
    text = f'Best of {len(runs)} runs: {best.name}, {_result(best)}'
  return text[0].upper() + text[1:]


def _result(run):
  outcome, metric = run.outcome, run.metric
  score = 'not scored'
  if metric is not None:
    score = quality(run, metric, [outcome[f'validation_{metric}']])
  if run.summary is None:
    return f'not finished: {outcome["steps"]:,} steps, {score} so far'
  if outcome['workers'] == 1:
    return f'{score} with one worker'
  return f'{score} {price(run.share_of_bsp)}'


def description(run: Run) -> str:
  """Describes the most important settings of a run."""
  seed = f', seed {run.config["seed"]}' if 'seed' in run.config else ''
  return f'{run.name}: {run.method} on {setting(run.fields)}{seed}'


def shared_setting(runs: Sequence[Run]) -> str:
  """Describes the part of a `setting` that all runs share."""
  first, *others = (run.fields for run in runs)
  same = {
    name: value
    for name, value in first.items()
    if all(other.get(name) == value for other in others)
  }
  return setting(same)


def setting(fields: Mapping[str, Any]) -> str:
  """Describes data, workers, partition and model by a config's dotted names."""
  known = (
    form.format(fields[k]) for k, form in _SETTING.items() if k in fields
  )
  return ', '.join(known)


def quality(
  run: Run,
  metric: str,
  scores: Sequence[float],
  column: Iterable[Sequence[float]] = (),
) -> str:
  """Describes the mean and the deviation of scores of runs such as `run`.

  All scores in `column` have the same number of decimals.
  """
  form = '.1%' if run.is_share(metric, scores) else '.4g'
  form = significance.column_form([scores, *column], form)
  return f'validation {metric} {significance.spread(scores, form).text}'


def price(share: float) -> str:
  """Describes a share of BSP's traffic.

  >>> price(0.081)
  'for 8.1% of the traffic of BSP'
  >>> price(1.335)
  'for 133.5% of the traffic of BSP'
  """
  part = 'at' if 0.995 < share < 1.005 else f'for {share:.1%} of'
  return f'{part} the traffic of BSP'


def origin(run: Run) -> str:
  """Describes the last session of a run; empty if none was recorded."""
  if not run.sessions:
    return ''
  *earlier, last = run.sessions
  began = datetime.datetime.fromisoformat(last['began'])
  parts = [f'{run.name}: {began:%Y-%m-%d %H:%M} UTC']
  if earlier:
    count = len(run.sessions)
    parts.append(f'session {count}, from step {last["step"]:,}')
  versions = (f'{name} {text}' for name, text in last['versions'].items())
  parts.append(', '.join(versions))
  for code in last['code'].values():
    changed = ', with changes' if code['modified'] else ''
    parts.append(f'commit {code["commit"][:12]}{changed}')
  devices = last['devices']
  machine = f'{devices["count"]} devices ({devices["kind"]}) of {last["host"]}'
  parts += [machine, last['command']]
  return '; '.join(filter(None, parts))
