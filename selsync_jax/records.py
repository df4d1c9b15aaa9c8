"""What a run writes into its workdir, and what it counts on the way.

`config.json` is the resolved config, `metrics.jsonl` one JSON object a logged
step, `summary.json` the outcome.
"""

from collections.abc import Mapping
import json
import math
import pathlib
from typing import Any

import ml_collections

from selsync_jax.config import ConfigError

CONFIG, METRICS, SUMMARY = 'config.json', 'metrics.jsonl', 'summary.json'


def to_json(value: Any) -> str:
  """Strict JSON on one line; numbers that JSON has not become null."""
  return json.dumps(_finite(value), allow_nan=False)


def _finite(value):
  if isinstance(value, Mapping):
    return {k: _finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [_finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def open_workdir(workdir: pathlib.Path) -> None:
  """Makes the folder, and sees that it can be written.

  Raises:
    ConfigError: if it can not.
  """
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    probe = workdir / '.probe'
    probe.touch()
    probe.unlink()
  except OSError as error:
    raise ConfigError(
      f'--workdir={workdir}: cannot be written: {error.strerror}'
    ) from error


def write_config(
  workdir: pathlib.Path, config: ml_collections.ConfigDict
) -> None:
  """Writes the resolved config."""
  text = json.dumps(config.to_dict(), indent=2, sort_keys=True)
  (workdir / CONFIG).write_text(text + '\n')


def write_summary(workdir: pathlib.Path, summary: Mapping[str, Any]) -> None:
  """Writes the outcome of a run."""
  text = json.dumps(_finite(summary), indent=2)
  (workdir / SUMMARY).write_text(text + '\n')


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The lines of `metrics.jsonl`, or none if there is no such file.

  What stands after the last line break is a line that a crash tore off.
  """
  path = workdir / METRICS
  text = path.read_text() if path.exists() else ''
  return [json.loads(line) for line in text.split('\n')[:-1]]


class MetricsFile:
  """Appends to `metrics.jsonl`, a line at a time."""

  def __init__(self, workdir: pathlib.Path):
    self._file = (workdir / METRICS).open('a', buffering=1)

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step."""
    self._file.write(to_json(row) + '\n')

  def __enter__(self) -> 'MetricsFile':
    return self

  def __exit__(self, *exc: Any) -> None:
    self._file.close()


def keep_metrics_until(workdir: pathlib.Path, step: int) -> None:
  """Drops the lines after a step: those steps will be taken again."""
  rows = [row for row in read_metrics(workdir) if row['step'] <= step]
  text = ''.join(to_json(row) + '\n' for row in rows)
  (workdir / METRICS).write_text(text)
