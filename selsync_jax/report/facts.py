"""A run in words and numbers: its score, costs, settings and provenance."""

from collections.abc import Mapping, Sequence
import datetime
import math
import statistics
from typing import Any, NamedTuple

import numpy as np
import rich.box
import rich.console
import rich.table

from selsync_jax.config import flat
from selsync_jax.runs import history
from selsync_jax.runs.history import Run


class Cell(NamedTuple):
  """A value and its text; the value is `None` if the cell has no number."""

  value: Any
  text: str


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


def deviation(values: Sequence[float]) -> float:
  """Returns the sample standard deviation; NaN if a value is."""
  return float(np.std(values, ddof=1))  # statistics.stdev fails for NaN.


def spread(values: Sequence[float], form: str) -> Cell:
  """Returns the mean, and the sample standard deviation of several values."""
  if not values:
    return Cell(None, '–')
  mean = statistics.fmean(values)
  text = format(mean, form)
  if len(values) > 1:
    text += f' ± {format(deviation(values), form.lstrip("+"))}'
  return Cell(mean, text)


def bounds(differences: Sequence[float]) -> tuple[float, float]:
  """Returns the 95% confidence interval of the mean of paired differences.

  It assumes that they are a random sample from a normal distribution (Student's
  t). A single one says nothing: the interval is infinite. Equal ones show no
  spread, so both bounds are their value, and how far others would be off is not
  known; rounding may tell equal ones apart.

  >>> [round(bound, 3) for bound in bounds([0.01, 0.02, 0.03])]
  [-0.005, 0.045]
  """
  count = len(differences)
  if count < 2:
    return -math.inf, math.inf
  mean = statistics.fmean(differences)
  if np.ptp(differences) <= 1e-12:
    return mean, mean
  from scipy import stats  # Takes most of a second to import.

  quantile = float(stats.t.ppf(0.975, count - 1))
  margin = quantile * deviation(differences) / math.sqrt(count)
  return mean - margin, mean + margin


def interval(differences: Sequence[float], form: str) -> Cell:
  """Returns the mean of paired differences, and its `bounds`, if there are any.

  >>> interval([0.01, 0.02, 0.03], '+.2f').text
  '+0.02 [-0.00, +0.04]'
  >>> interval([0.01, 0.01], '+.2f').text
  '+0.01, equal in 2'
  """
  count = len(differences)
  if count < 2:
    return spread(differences, form)
  mean = statistics.fmean(differences)
  low, high = bounds(differences)
  if low == high:
    return Cell(mean, f'{mean:{form}}, equal in {count}')
  return Cell(mean, f'{mean:{form}} [{low:{form}}, {high:{form}}]')


# The name in the table, and the format, of fields of summary.json.
_FACTS = {
  'steps': ('steps', '{:,}'.format),
  'sync_steps': ('synchronizations', '{:,}'.format),
  'lssr': ('LSSR (local steps / steps)', '{:.3f}'.format),
  'bytes_per_worker': ('bytes sent per worker', size),
  'injection_bytes': ('of these, examples injected', size),
  'bytes_per_worker_bsp': ('the same run under BSP', size),
  'seconds': ('seconds', '{:.1f}'.format),
  'virtual_seconds': ('virtual seconds', '{:,.1f}'.format),
  'waited': ('of these, waiting for other workers', '{:,.1f}'.format),
  'staleness': ('mean staleness of gradients', '{:.2f}'.format),
  'samples_per_second': ('samples/s', '{:,.0f}'.format),
}
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
  rows = {k: (name, '{:.4f}'.format) for k, name in names.items()} | _FACTS
  return {
    name: Cell(outcome[field], text(outcome[field]))
    for field, (name, text) in rows.items()
    if outcome.get(field) is not None
  }


def show(outcome: Mapping[str, Any]) -> None:
  """Prints the table of a summary with a title, or of its scores alone."""
  title = None
  if 'method' in outcome:
    title = f'{outcome["method"]}, {outcome["workers"]} workers'
  table = rich.table.Table(
    title=title, box=rich.box.SIMPLE_HEAD, show_header=False
  )
  for name, cell in facts(outcome).items():
    table.add_row(name, cell.text)
  rich.console.Console().print(table)


def headline(runs: Sequence[Run]) -> str:
  """Describes the result of a run, or of the best of several."""
  if len(runs) == 1:
    text = _result(runs[0])
  else:
    best = max(runs, key=lambda run: run.rank())
    if len({run.goal.main for run in runs}) > 1 or len(_datasets(runs)) > 1:
      return f'{len(runs)} runs of different tasks'
    text = f'Best of {len(runs)} runs: {best.name}, {_result(best)}'
  return text[0].upper() + text[1:]


def _datasets(runs: Sequence[Run]) -> set[str]:
  """Returns the names of the data sets of runs, as far as they are known."""
  names = (run.config.get('data', {}).get('name') for run in runs)
  return {name for name in names if name}


def _result(run):
  outcome, metric = run.outcome, run.metric
  score = 'not scored'
  if metric is not None:
    score = quality(run, metric, [outcome[f'validation_{metric}']])
  if run.summary is None:
    return f'not finished: {outcome["steps"]:,} steps, {score} so far'
  if outcome['workers'] == 1:
    return f'{score} with one worker'
  return f'{score} {price(history.share_of_bsp(outcome))}'


def description(run: Run) -> str:
  """Describes the most important settings of a run."""
  config = run.config
  seed = f', seed {config["seed"]}' if 'seed' in config else ''
  method = history.composition(config['sync'])
  return f'{run.name}: {method} on {setting(config)}{seed}'


def shared_setting(runs: Sequence[Run]) -> str:
  """Describes what `setting` does, as far as all runs have the same."""
  first, *others = (flat(run.config) for run in runs)
  same = {
    name: value
    for name, value in first.items()
    if all(other.get(name) == value for other in others)
  }
  return setting(same)


def setting(config: Mapping[str, Any]) -> str:
  """Describes data, workers, partition and model, as far as it names them."""
  fields = flat(config)
  known = (
    form.format(fields[k]) for k, form in _SETTING.items() if k in fields
  )
  return ', '.join(known)


def quality(run: Run, metric: str, scores: Sequence[float]) -> str:
  """Describes the mean and the deviation of scores of runs such as `run`."""
  form = '.1%' if run.is_share(metric, scores) else '.4g'
  return f'validation {metric} {spread(scores, form).text}'


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
