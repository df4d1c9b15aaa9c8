"""A run in words: its score, its cost, its settings and its provenance."""

from collections.abc import Mapping, Sequence
import datetime
from typing import Any

from selsync_jax.report import facts
from selsync_jax.runs import history
from selsync_jax.runs.history import Run


def headline(runs: Sequence[Run]) -> str:
  """Describes the result of a run, or of the best of several."""
  if len(runs) == 1:
    text = _result(runs[0])
  else:
    best = max(runs, key=lambda run: run.rank())
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
  return f'{score} {price(history.share_of_bsp(outcome))}'


def description(run: Run) -> str:
  """Describes the most important settings of a run."""
  config = run.config
  return (
    f'{run.name}: {history.composition(config["sync"])} on {setting(config)}, '
    f'seed {config["seed"]}'
  )


def setting(config: Mapping[str, Any]) -> str:
  """Describes data, workers, partition and model."""
  return (
    f'{config["data"]["name"]}, {config["workers"]} workers, partition '
    f'{config["data"]["partition"]}, model {config["model"]["name"]}'
  )


def quality(run: Run, metric: str, scores: Sequence[float]) -> str:
  """Describes the mean of scores on validation, and the deviation of several.

  `run` is one of the runs that have these scores.
  """
  form = '.1%' if run.is_share(metric, scores) else '.4g'
  return f'validation {metric} {facts.spread(scores, form).text}'


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
