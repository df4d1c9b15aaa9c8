"""The JSON files of a run.

`config.json` holds the resolved config, `data.json` facts about the data and
the workers' chunks, `metrics.jsonl` one JSON object per logged step, and
`summary.json` the outcome. All are read by `files`, with the shapes below.
"""

from collections.abc import Mapping
import contextlib
import json
import math
import os
import pathlib
import sys
from typing import Any, NamedTuple
import zlib

from selsync_jax.runs import files
from selsync_jax.runs.files import NUMBER
from selsync_jax.runs.files import NUMBER_OR_NULL

CONFIG, DATA = 'config.json', 'data.json'
METRICS, SUMMARY = 'metrics.jsonl', 'summary.json'

_CONFIG_SHAPE = {
  'workers': int,
  'seed': int,
  'sync': {'method': str},
  'data': {'name': str, 'partition': str},
  'model': {'name': str},
}
_ABSENT = type(...)  # Of a field that some runs do not have.
_DATA_SHAPE = {'labels': ([[int]], type(None)), 'num_classes': (int, _ABSENT)}
_TOTALS = {
  'lssr': (*NUMBER, _ABSENT),
  'samples': int,
  'bytes_per_worker': NUMBER,
  'seconds': NUMBER,
  'samples_per_second': NUMBER_OR_NULL,
}
_ROW_SHAPE = {
  'step': int,
  'relative_changes': ([NUMBER_OR_NULL], _ABSENT),
  **_TOTALS,
  # A simulation has a number for each worker, and spans of time.
  ...: (*NUMBER_OR_NULL, bool, [NUMBER], [[(str, *NUMBER)]]),
}
_SUMMARY_SHAPE = {
  'method': str,
  'workers': int,
  'seed': int,
  'steps': int,
  'sync_steps': (int, _ABSENT),
  'bytes_per_worker_bsp': NUMBER,
  **_TOTALS,
}
_TAIL = 2**16  # Bytes; many rows.


def to_json(value: Any) -> str:
  """Strict JSON on one line; NaN and infinities become null."""
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
  """The numbers of a row, except those per worker; a flag is 1 or 0."""
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
  """The resolved config, or `None` if the folder holds no run."""
  return files.read(workdir / CONFIG, _CONFIG_SHAPE)


def write_data(workdir: pathlib.Path, facts: Mapping[str, Any]) -> None:
  """Writes the facts about the data."""
  files.write(workdir / DATA, json.dumps(facts, indent=2) + '\n')


def read_label_counts(workdir: pathlib.Path) -> list[list[int]] | None:
  """Examples of each label in each worker's chunk, if they were recorded."""
  facts = files.read(workdir / DATA, _DATA_SHAPE)
  counts = facts and facts['labels']
  if counts and len({len(worker) for worker in counts}) > 1:
    raise files.DamagedFile(workdir / DATA, 'labels is not a table')
  return counts


def read_num_classes(workdir: pathlib.Path) -> int | None:
  """The `num_classes` of the data; `None` if they were not recorded."""
  facts = files.read(workdir / DATA, _DATA_SHAPE)
  return facts and facts.get('num_classes')


def write_summary(workdir: pathlib.Path, summary: Mapping[str, Any]) -> None:
  """Writes the outcome of a run."""
  text = json.dumps(_finite(summary), indent=2)
  files.write(workdir / SUMMARY, text + '\n')


def read_summary(workdir: pathlib.Path) -> dict[str, Any] | None:
  """The outcome of a finished run, or `None`."""
  return files.read(workdir / SUMMARY, _SUMMARY_SHAPE)


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
  """The rows of `metrics.jsonl`, by step.

  A last line torn by a crash is left out; so are damaged lines, which are
  reported.
  """
  path = workdir / METRICS
  intact, damaged = _lines(path)
  if damaged:
    lines_are = 'line is' if damaged == 1 else 'lines are'
    print(f'{path}: {damaged} damaged {lines_are} left out', file=sys.stderr)
  return [intact[step].row for step in sorted(intact)]


def last_row(workdir: pathlib.Path) -> dict[str, Any] | None:
  """The newest intact row of `metrics.jsonl`, without reading all of it."""
  with contextlib.suppress(OSError), (workdir / METRICS).open('rb') as file:
    file.seek(-min(file.seek(0, os.SEEK_END), _TAIL), os.SEEK_END)
    for line in reversed(file.read().split(b'\n')[:-1]):
      with contextlib.suppress(ValueError):
        return files.parse(line, _ROW_SHAPE)
  return None


class _Line(NamedTuple):
  text: bytes
  row: dict[str, Any]


def _lines(path: pathlib.Path) -> tuple[dict[int, _Line], int]:
  """The intact lines of a metrics file by step, and the number of others."""
  *lines, _ = (files.read_bytes(path) or b'').split(b'\n')
  intact: dict[int, _Line] = {}
  for line in lines:
    with contextlib.suppress(ValueError):
      row = files.parse(line, _ROW_SHAPE)
      intact.setdefault(row['step'], _Line(line + b'\n', row))
  return intact, len(lines) - len(intact)


class Seal(NamedTuple):
  """What a checkpoint remembers of `metrics.jsonl`.

  Attributes:
    rows: number of lines.
    crc32: of all of them.
  """

  rows: int
  crc32: int


EMPTY = Seal(0, zlib.crc32(b''))


class MetricsFile:
  """Appends rows to `metrics.jsonl`.

  Args:
    workdir: of the run.
    step: the last step whose row is kept; later steps will be taken, and
      written, again.
    seal: of the file at that step, to compare it with; missing or damaged rows
      are reported.
  """

  def __init__(self, workdir: pathlib.Path, step: int, seal: Seal = EMPTY):
    path = workdir / METRICS
    check_metrics(workdir, step, seal)
    lines, self._seal = _kept(path, step)
    files.write(path, b''.join(lines).decode())
    self._file = path.open('ab')

  def __enter__(self) -> 'MetricsFile':
    return self

  def __exit__(self, *exc: Any) -> None:
    self._file.close()

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step."""
    line = f'{to_json(row)}\n'.encode()
    self._file.write(line)
    self._file.flush()
    self._seal = Seal(self._seal.rows + 1, zlib.crc32(line, self._seal.crc32))

  def seal(self) -> Seal:
    """Makes the rows so far survive a power loss, and describes them."""
    os.fsync(self._file.fileno())
    return self._seal


def check_metrics(workdir: pathlib.Path, step: int, seal: Seal) -> None:
  """Reports rows of a finished run that are lost or changed."""
  path = workdir / METRICS
  _, found = _kept(path, step)
  if seal != found:
    print(_difference(path, seal, found, step), file=sys.stderr)


def _kept(path: pathlib.Path, step: int) -> tuple[list[bytes], Seal]:
  """The intact lines up to a step, and their seal."""
  intact, _ = _lines(path)
  lines = [intact[s].text for s in sorted(intact) if s <= step]
  return lines, Seal(len(lines), zlib.crc32(b''.join(lines)))


def _difference(
  path: pathlib.Path, expected: Seal, found: Seal, step: int
) -> str:
  """What is wrong with the rows up to a step, and what follows."""
  lost = expected.rows - found.rows
  if lost <= 0:
    return (
      f'{path}: rows up to step {step} were changed after they were written'
    )
  return (
    f'{path}: {lost} of {expected.rows} rows up to step {step} are lost; '
    'nothing else is affected'
  )
