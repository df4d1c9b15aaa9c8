"""The JSON files of a run.

`config.json` holds the resolved config, `data.json` facts about the data and
the workers' chunks, `metrics.jsonl` one JSON object per logged step,
`workers.jsonl` the values per worker of these steps, and `summary.json` the
outcome. All are read by `files`, with the types below.
"""

from collections.abc import Mapping, Sequence
import json
import math
import pathlib
import sys
from typing import Any, NamedTuple, NotRequired, TypedDict

from selsync_jax.models.tasks import Goal
from selsync_jax.runs import files
from selsync_jax.runs import per_worker
from selsync_jax.runs import step_lines

CONFIG, DATA = 'config.json', 'data.json'
METRICS, SUMMARY = 'metrics.jsonl', 'summary.json'
WORKERS = 'workers.jsonl'


class _Named(TypedDict):
  name: str


class _DataConfig(_Named):
  partition: str


class _SyncConfig(TypedDict):
  method: str


class _Config(TypedDict):
  workers: int
  seed: int
  sync: _SyncConfig
  data: _DataConfig
  model: _Named


class _Goal(TypedDict):
  main: str
  higher: list[str]


class _Data(TypedDict):
  labels: list[list[int]] | None
  num_classes: NotRequired[int]
  units: NotRequired[dict[str, str]]
  goal: NotRequired[_Goal]


class _Totals(TypedDict):
  lssr: NotRequired[float]
  samples: int
  bytes_per_worker: float
  seconds: float
  samples_per_second: float | None


class _Row(_Totals):
  step: int


class _Summary(_Totals):
  method: str
  workers: int
  seed: int
  steps: int
  sync_steps: NotRequired[int]
  bytes_per_worker_bsp: float


# The type that every field of a row must have, in `_Row` or not.
_FIELDS = dict[str, float | bool | list[float | None] | None]


def to_json(value: Any) -> str:
  """Encodes as strict JSON on one line; NaN and infinities become null."""
  return json.dumps(_finite(value), allow_nan=False)


def _finite(value):
  if isinstance(value, dict):
    return {k: _finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [_finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def numbers(row: Mapping[str, Any]) -> dict[str, int | float]:
  """Returns a row's numbers, except those per worker; a flag is 1 or 0."""
  return {
    name: int(value) if isinstance(value, bool) else value
    for name, value in row.items()
    if isinstance(value, int | float)
  }


def write_config(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Writes the resolved config."""
  text = json.dumps(config, indent=2, sort_keys=True)
  files.write(workdir / CONFIG, text + '\n')


def read_config(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Returns the resolved config, or `None` if the folder holds no run."""
  return files.read(workdir / CONFIG, _Config)


def write_data(workdir: pathlib.Path, facts: Mapping[str, Any]) -> None:
  """Writes the facts about the data."""
  files.write(workdir / DATA, json.dumps(facts, indent=2) + '\n')


def read_data(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns the recorded facts about the data, each of which may be missing.

  `labels` is a list for each worker: how many examples of each label its chunk
  holds. `num_classes` is the number of outputs, `units` maps a metric's name to
  its unit.
  """
  facts = files.read(workdir / DATA, _Data) or {}
  if len({len(worker) for worker in facts.get('labels') or ()}) > 1:
    raise files.DamagedFile(workdir / DATA, 'labels is not a table')
  return facts


def read_goal(workdir: pathlib.Path) -> Goal | None:
  """Returns how the run is judged; `None` if it was not recorded."""
  facts = files.read(workdir / DATA, _Data)
  goal = facts and facts.get('goal')
  return goal and Goal(goal['main'], tuple(goal['higher']))


def write_summary(workdir: pathlib.Path, summary: Mapping[str, Any]) -> None:
  """Writes the outcome of a run."""
  text = json.dumps(_finite(summary), indent=2)
  files.write(workdir / SUMMARY, text + '\n')


def read_summary(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Returns the outcome of a finished run, or `None`."""
  return files.read(workdir / SUMMARY, _Summary)


def _metrics(workdir: pathlib.Path) -> step_lines.StepLines:
  return step_lines.StepLines(workdir / METRICS, _row)


def _row(line: bytes) -> dict[str, Any]:
  return files.parse(line, _FIELDS, _Row)


def _workers(workdir: pathlib.Path) -> step_lines.StepLines:
  return step_lines.StepLines(workdir / WORKERS, per_worker.parse)


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the rows of `metrics.jsonl`, by step.

  It reports damaged lines and leaves them out. A last line that a crash cut off
  is left out silently.
  """
  rows, damaged = _metrics(workdir).read()
  if damaged:
    lines_are = 'line is' if damaged == 1 else 'lines are'
    print(
      f'{workdir / METRICS}: {damaged} damaged {lines_are} left out',
      file=sys.stderr,
    )
  return list(rows.values())


def last_row(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Returns the newest intact row of `metrics.jsonl`; reads only its end."""
  return _metrics(workdir).last()


def read_workers(
  workdir: pathlib.Path, steps: Sequence[int]
) -> list[per_worker.Arrays]:
  """Returns the values per worker of some steps, from `workers.jsonl`.

  It reports lost and damaged steps, whose values are an empty dict.
  """
  rows, _ = _workers(workdir).read()
  if lost := len(set(steps) - rows.keys()):
    print(
      f'{workdir / WORKERS}: the values of {lost} of {len(steps)} steps are '
      'lost or damaged; figures leave them out',
      file=sys.stderr,
    )
  return [
    {name: rows[step][name] for name in rows.get(step, {}) if name != 'step'}
    for step in steps
  ]


class Seals(NamedTuple):
  """The seals of a run's two files of rows, which a checkpoint stores.

  Attributes:
    metrics: the seal of `metrics.jsonl`.
    workers: the seal of `workers.jsonl`.
  """

  metrics: step_lines.Seal = step_lines.EMPTY
  workers: step_lines.Seal = step_lines.EMPTY


NO_ROWS = Seals()


def seals(record: Mapping[str, Any] | None) -> Seals:
  """Returns the seals in a checkpoint's record; empty ones without a record."""
  sealed = record['metrics'] if record else ()
  return Seals(*(step_lines.Seal(*seal) for seal in sealed))


class MetricsFile:
  """The open files `metrics.jsonl` and `workers.jsonl`, for appending rows.

  Args:
    workdir: the run's folder.
    step: the last step whose row is kept; later ones will be written again.
    sealed: the seals at that step; rows that do not match are reported.
  """

  def __init__(self, workdir: pathlib.Path, step: int, sealed: Seals = NO_ROWS):
    check_metrics(workdir, step, sealed)
    self._metrics = step_lines.Appender(_metrics(workdir), step)
    self._workers = step_lines.Appender(_workers(workdir), step)

  def __enter__(self) -> 'MetricsFile':
    return self

  def __exit__(self, *exc: Any) -> None:
    self._metrics.close()
    self._workers.close()

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step; `metrics.jsonl` gets quantiles over workers."""
    values = per_worker.arrays(row)
    texts = per_worker.encode(values)
    self._workers.append(to_json({'step': row['step'], **texts}))
    short = {name: row[name] for name in row if name not in values}
    self._metrics.append(to_json(short | per_worker.quantiles(values)))

  def seal(self) -> Seals:
    """Flushes the rows to disk and returns their seals."""
    return Seals(self._metrics.seal(), self._workers.seal())


def check_metrics(workdir: pathlib.Path, step: int, sealed: Seals) -> None:
  """Reports rows up to a step that are lost or changed."""
  _metrics(workdir).check(step, sealed.metrics)
  _workers(workdir).check(step, sealed.workers)
