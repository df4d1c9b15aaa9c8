"""The writers that `config.log.to` names, which copy a run's rows to tools.

A run resumes from `metrics.jsonl`, and reports read it. The writers copy its
rows to other tools; the run continues if a writer fails.
"""

from collections.abc import Generator, Mapping, Sequence
import contextlib
import importlib
import importlib.util
import sys
from typing import Any, NamedTuple, Protocol, runtime_checkable

from selsync_jax import user_errors
from selsync_jax.config import lookup, Registry, RunError


@runtime_checkable
class Writer(Protocol):
  """A context manager that takes the rows of a run.

  In each session of a run, the first process creates a writer by
  `name(workdir, step, config)`: the run's folder; the last step whose row is
  kept, 0 for a new run; and the resolved config, as nested dicts. If the run
  was killed after a checkpoint, the rows after `step` are written again.
  """

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step.

    Args:
      row: numbers and lists of numbers, by column; `step` is one of them. An
        evaluation adds columns to the row of its step.
    """

  def __enter__(self) -> 'Writer': ...

  def __exit__(self, *exc: Any) -> None: ...


class _BuiltIn(NamedTuple):
  """A built-in writer, which is imported when it is used."""

  module: str  # In the folder `destinations`.
  writer: str  # The class in it.
  library: str  # The module that it needs.
  extra: str = 'train'  # The extra of this package that installs the library.

  def __call__(self, *arguments: Any) -> Writer:
    path = f'selsync_jax.runs.destinations.{self.module}'
    return getattr(importlib.import_module(path), self.writer)(*arguments)

  def check(self, name: str) -> None:
    """Raises `ValueError` if the library is not installed."""
    spec = importlib.util.find_spec(self.library)
    # W&B creates folders named `wandb`, which Python takes for packages.
    if spec is None or spec.origin is None:
      raise ValueError(
        f'{name!r} needs the package {self.library}, which is not installed; '
        f"pip install 'selsync-jax[{self.extra}]'"
      )


_BUILT_IN = {
  'tensorboard': _BuiltIn('tensorboard_file', 'TensorBoardFile', 'tensorboard'),
  'wandb': _BuiltIn('wandb_run', 'WandbRun', 'wandb', 'wandb'),
  'mlflow': _BuiltIn('mlflow_run', 'MlflowRun', 'mlflow', 'mlflow'),
}
WRITERS = Registry('writer', _BUILT_IN)


def register_writer(create: Any) -> Any:
  """Registers a writer under its own name, for `config.log.to`.

  It is a decorator for a class like `Writer`, or for a function that returns
  such an object.

  Raises:
    ConfigError: if another writer has this name.
  """
  return WRITERS.register(create)


def check(names: Sequence[str]) -> None:
  """Raises `ValueError` for a wrong name in `config.log.to`.

  A wrong name is unknown, occurs twice, or needs a library that is not
  installed.
  """
  for name in names:
    writer = lookup(WRITERS, name)
    if isinstance(writer, _BuiltIn):
      writer.check(name)
    if list(names).count(name) > 1:
      raise ValueError(f'{name!r} is named twice')


class Guarded:
  """A registered writer, which gets no more rows once it has failed."""

  def __init__(self, name: str, *arguments: Any):
    self._name, self._failed = name, False
    try:
      self._writer: Writer = WRITERS[name](*arguments)
    except user_errors.RAISED as error:
      raise RunError(self._line(error)) from error

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds one logged step."""
    if not self._failed:
      with self._reporting():
        self._writer.write(row)

  def __enter__(self) -> 'Guarded':
    self._writer = self._writer.__enter__()
    return self

  def __exit__(self, *exc: Any) -> None:
    with self._reporting():
      self._writer.__exit__(*exc)

  @contextlib.contextmanager
  def _reporting(self) -> Generator[None]:
    try:
      yield
    except user_errors.RAISED as error:
      self._failed = True
      line = f'{self._line(error)}; it gets no more rows, the run continues'
      print(line, file=sys.stderr)

  def _line(self, error: BaseException) -> str:
    return f'config.log.to={self._name!r}: {user_errors.one_line(error)}'
