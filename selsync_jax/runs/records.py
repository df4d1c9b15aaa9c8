"""The JSON files of a run.

`config.json` holds the resolved config, `data.json` facts about the data and
the workers' chunks, `metrics.jsonl` one JSON object per logged step,
`workers.jsonl` the values per worker of these steps, and `summary.json` the
outcome. All are read by `files`, with the types below.

The files with a line per step are only appended to. A crash may cut off the
last line, and a disk may damage any line. Each line is therefore parsed alone,
and a checkpoint stores a seal of the lines before it.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import json
import os
import pathlib
import sys
from typing import Any, BinaryIO, NamedTuple, NotRequired, TypedDict
import zlib

from selsync_jax.runs import files, per_worker, provenance

CONFIG, DATA = 'config.json', 'data.json'
METRICS, SUMMARY = 'metrics.jsonl', 'summary.json'
WORKERS = 'workers.jsonl'
_TAIL = 2**16  # Bytes.

Row = dict[str, Any]


class _Named(TypedDict):
  name: str


class _DataConfig(_Named):
  partition: NotRequired[str]


class _SyncConfig(TypedDict):
  method: str


class _Config(TypedDict):
  workers: int
  sync: _SyncConfig
  seed: NotRequired[int]  # A custom loop may omit this and the rest.
  data: NotRequired[_DataConfig]
  model: NotRequired[_Named]


class _Goal(TypedDict):
  main: str
  higher: list[str]


class _Data(TypedDict):
  labels: list[list[int]] | None
  num_classes: NotRequired[int]
  units: NotRequired[dict[str, str]]
  goal: NotRequired[_Goal]


class _Counts(TypedDict):
  lssr: NotRequired[float]
  samples: int
  bytes_per_worker: float
  seconds: float
  samples_per_second: float | None


class _Row(_Counts):
  step: int


class _Summary(_Counts):
  method: str
  workers: int
  seed: NotRequired[int]
  steps: int
  sync_steps: NotRequired[int]
  bytes_per_worker_bsp: float


_KINDS = {CONFIG: _Config, SUMMARY: _Summary, DATA: _Data}

# The type that every field of a row must have, in `_Row` or not.
_FIELDS = dict[str, float | bool | list[float | None] | None]


def _finite(value: Any) -> Any:
  """Returns the value as JSON has it, with null for NaN and infinities."""
  return json.loads(json.dumps(value), parse_constant=lambda _: None)


def numbers(row: Mapping[str, Any]) -> dict[str, int | float]:
  """Returns a row's numbers, except those per worker; a flag is 1 or 0."""
  return {
    name: int(value) if isinstance(value, bool) else value
    for name, value in row.items()
    if isinstance(value, int | float)
  }


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a config as it is read back; `ValueError` if it is invalid."""
  return files.parse(json.dumps(config).encode(), _Config)


def write_config(workdir: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Writes the resolved config."""
  files.write_json(workdir / CONFIG, config, sort_keys=True)


def read_config(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Returns the resolved config, or `None` if the folder holds no run."""
  return files.read(workdir / CONFIG, _Config)


def write(workdir: pathlib.Path, file: str, facts: Mapping[str, Any]) -> None:
  """Writes `DATA` or `SUMMARY`, with null for numbers that are not finite."""
  files.write_json(workdir / file, _finite(facts))


def read_data(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns the recorded facts about the data, each of which may be missing.

  `labels` is a list for each worker: how many examples of each label its chunk
  holds. `num_classes` is the number of outputs, `units` maps a metric's name to
  its unit, `goal` is how the run is judged.
  """
  return files.read(workdir / DATA, _Data) or {}


def read_summary(workdir: pathlib.Path) -> dict[str, Any] | None:
  """Returns the outcome of a finished run, or `None`."""
  return files.read(workdir / SUMMARY, _Summary)


def read(workdir: pathlib.Path) -> tuple[Any, list[Row], Any, Any, list[Any]]:
  """Returns config, rows, summary, data and sessions of a run.

  A file that is missing has `None` or an empty collection, as in the functions
  that read it alone.
  """
  config, summary, data = (
    files.read(workdir / file, kind) for file, kind in _KINDS.items()
  )
  # A run may end meanwhile: rows are never older than the summary.
  rows, sessions = read_metrics(workdir), provenance.sessions(workdir)
  return config, rows, summary, data or {}, sessions


class Seal(NamedTuple):
  """A description of a file, to detect lost and changed lines."""

  rows: int = 0
  crc32: int = zlib.crc32(b'')


# Seals of `metrics.jsonl` and `workers.jsonl`; a checkpoint stores them.
Seals = tuple[Seal, ...]
NO_ROWS: Seals = (Seal(), Seal())


def seals(record: Mapping[str, Any] | None) -> Seals:
  """Returns the seals in a checkpoint's record; empty ones without a record."""
  return tuple(Seal(*seal) for seal in record['metrics']) if record else NO_ROWS


class Lines:
  """A file with a line of JSON for each logged step; empty if it is missing.

  `parse` turns a line into a row with a `step`, or raises `ValueError` if the
  line is damaged. Lines are added between `open` and `close`.
  """

  _file: BinaryIO
  _seal: Seal

  def __init__(self, path: pathlib.Path, parse: Callable[[bytes], Row]):
    self.path, self._parse = path, parse

  def read(self) -> tuple[dict[int, tuple[bytes, Row]], int]:
    """Returns each intact step's line and row, and the count of damaged lines.

    The steps ascend. A last line that a crash cut off counts as neither.
    """
    *lines, _ = (files.read_bytes(self.path) or b'').split(b'\n')
    intact: dict[int, tuple[bytes, Row]] = {}
    damaged = 0
    for line in lines:
      try:
        row = self._parse(line)
      except ValueError:
        damaged += 1
      else:
        intact.setdefault(row['step'], (line + b'\n', row))
    return dict(sorted(intact.items())), damaged

  def last(self) -> Row | None:
    """Returns the newest intact row; reads only the end of the file."""
    with contextlib.suppress(OSError), self.path.open('rb') as file:
      file.seek(-min(file.seek(0, os.SEEK_END), _TAIL), os.SEEK_END)
      for line in reversed(file.read().split(b'\n')[:-1]):
        with contextlib.suppress(ValueError):
          return self._parse(line)
    return None

  def kept(self, step: int, sealed: Seal | None = None) -> tuple[bytes, Seal]:
    """Returns the intact lines up to a step, and their seal.

    It reports lines that are lost or changed since they were `sealed`.
    """
    intact, _ = self.read()
    lines = [line for at, (line, _) in intact.items() if at <= step]
    text = b''.join(lines)
    found = Seal(len(lines), zlib.crc32(text))
    if sealed and sealed != found:
      lost, rows = sealed.rows - found.rows, f'rows up to step {step}'
      line = f'{rows} were changed after they were written'
      if lost > 0:
        line = f'{lost} of {sealed.rows} {rows} are lost; nothing else is '
        line += 'affected'
      print(f'{self.path}: {line}', file=sys.stderr)
    return text, found

  def cut(self, step: int, sealed: Seal | None = None) -> Seal:
    """Cuts the file to the lines that `kept` returns; returns their seal."""
    text, seal = self.kept(step, sealed)
    files.write(self.path, text.decode())
    return seal

  def open(self, step: int, sealed: Seal | None = None) -> None:
    """Opens the file for lines after a step; see `kept`."""
    self._seal = self.cut(step, sealed)
    self._file = self.path.open('ab')

  def append(self, row: Row) -> None:
    """Adds a line of strict JSON."""
    line = f'{json.dumps(_finite(row), allow_nan=False)}\n'.encode()
    with files.naming(self.path):
      self._file.write(line)
      self._file.flush()
    self._seal = Seal(self._seal.rows + 1, zlib.crc32(line, self._seal.crc32))

  def seal(self) -> Seal:
    """Flushes the lines to disk and returns their seal."""
    os.fsync(self._file.fileno())
    return self._seal

  def close(self) -> None:
    """Closes the file, after another attempt at writes that failed."""
    with files.naming(self.path):
      self._file.close()


def _lines(workdir: pathlib.Path) -> tuple[Lines, Lines]:
  """Returns the files `metrics.jsonl` and `workers.jsonl`."""
  return (
    Lines(workdir / METRICS, lambda line: files.parse(line, _FIELDS, _Row)),
    Lines(workdir / WORKERS, per_worker.parse),
  )


def read_metrics(workdir: pathlib.Path) -> list[Row]:
  """Returns the rows of `metrics.jsonl`, by step; reports damaged lines."""
  rows, damaged = _lines(workdir)[0].read()
  if damaged:
    lines_are = 'line is' if damaged == 1 else 'lines are'
    print(
      f'{workdir / METRICS}: {damaged} damaged {lines_are} left out',
      file=sys.stderr,
    )
  return [row for _, row in rows.values()]


def last_row(workdir: pathlib.Path) -> Row | None:
  """Returns the newest intact row of `metrics.jsonl`; reads only its end."""
  return _lines(workdir)[0].last()


def read_workers(
  workdir: pathlib.Path, steps: Sequence[int]
) -> list[per_worker.Arrays]:
  """Returns the values per worker of some steps, from `workers.jsonl`.

  A lost or damaged step is reported, and has an empty dict.
  """
  rows, _ = _lines(workdir)[1].read()
  if lost := len(set(steps) - rows.keys()):
    print(
      f'{workdir / WORKERS}: the values of {lost} of {len(steps)} steps are '
      'lost or damaged; figures leave them out',
      file=sys.stderr,
    )
  found = (rows[step][1] if step in rows else {} for step in steps)
  return [{k: v for k, v in row.items() if k != 'step'} for row in found]


class Rows(contextlib.AbstractContextManager[Any]):
  """The open files `metrics.jsonl` and `workers.jsonl`, for adding rows.

  Rows after a step are dropped, because they will be written again. Rows up to
  the step are reported if they do not match their seals.
  """

  def __init__(
    self, workdir: pathlib.Path, step: int, sealed: Seals | None = None
  ):
    self._metrics, self._workers = both = _lines(workdir)
    for file, seal in zip(both, sealed or (None, None), strict=True):
      file.open(step, seal)

  def __exit__(self, *exc: Any) -> None:
    with contextlib.closing(self._workers):
      self._metrics.close()

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step; `metrics.jsonl` gets quantiles over workers."""
    values = per_worker.arrays(row)
    self._workers.append({'step': row['step'], **per_worker.encode(values)})
    short = {name: row[name] for name in row if name not in values}
    self._metrics.append(short | per_worker.quantiles(values))

  def seal(self) -> Seals:
    """Flushes the rows to disk and returns their seals."""
    return self._metrics.seal(), self._workers.seal()


def check_metrics(workdir: pathlib.Path, step: int, sealed: Seals) -> None:
  """Reports rows up to a step that are lost or changed."""
  for file, seal in zip(_lines(workdir), sealed, strict=True):
    file.kept(step, seal)
