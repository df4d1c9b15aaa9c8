"""Records a custom training loop as the trainer records its runs."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import functools
import os
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from selsync_jax.config import ConfigError
from selsync_jax.devices import arrays
from selsync_jax.models import tasks
from selsync_jax.runs import files, history, ledger, records, writers
from selsync_jax.runs.fetching import Fetcher, Scores
from selsync_jax.runs.ledger import Ledger, Totals
from selsync_jax.runs.records import Row
from selsync_jax.runs.store import Store
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.traffic import traffic

_FETCH = 10  # Steps whose metrics are fetched together.
_GIVEN = ledger.REPORTED | {'count', 'synced', 'relative_change', 'lr'}
_TAKEN = ledger.COLUMNS - _GIVEN  # Columns that no metric may have.


class Recorder(contextlib.ExitStack):
  """Records a custom training loop, for `selsync report`.

  It is a context manager, in which the folder belongs to this loop. All
  processes make the same calls, and the first one writes. Needs the extra
  `train`.

  Args:
    workdir: the run's folder, created if need be.
    workers: N, the number of workers of all processes.
    strategy: the trigger and the other parts of the loop's method; it says how
      many bytes a worker sends.
    params: the parameters of one worker, or their shapes.
    model_state: the state that is averaged with the parameters, likewise.
    opt_state: the optimizer's state, likewise, if the strategy averages it.
    config: more facts for the report, as nested dicts of JSON. It puts `seed`,
      `data.name`, `data.partition` and `model.name` into words.
    step: the step of the checkpoint that the loop resumes from. Later rows are
      dropped.
    restart: whether to move a run in `workdir` aside first.
    to: more destinations of the rows, as in `config.log.to`: `tensorboard`,
      `wandb`, `mlflow`, or your own writer.

  Raises:
    ConfigError: for an argument that breaks its rule, or a folder that holds
      another run or is in use; from any method, for invalid metrics or scores.
  """

  def __init__(
    self,
    workdir: str | os.PathLike[str],
    *,
    workers: int,
    strategy: Strategy,
    params: Any,
    model_state: Any = (),
    opt_state: Any = (),
    config: Mapping[str, Any] | None = None,
    step: int = 0,
    restart: bool = False,
    to: Sequence[str] = (),
  ):
    super().__init__()
    try:
      writers.check(to)
    except ValueError as error:
      raise ConfigError(f'to={to!r}: {error}') from error
    if restart and step:
      raise ConfigError(f'step={step}: must be 0 with restart=True')
    strategy.check()
    shared = {'params': params, 'model_state': model_state}
    sends = strategy.sends(shared, workers, opt_state)
    self._traffic = traffic(sends, params, workers)
    self._workers = workers
    folder = pathlib.Path(workdir).expanduser()
    self._config = _config(workers, strategy, to, config or {})
    rows = [] if restart else _rows(folder, step, workers)
    self._row = rows[-1] if rows else None  # The row to resume from.
    self._scores: Scores = history.newest_scores(rows)
    self._store = Store(folder, self._config, step, restart=restart)
    self._is_open = False  # Whether the newest row takes scores.
    self._names: set[str] = set()  # Of the first step's metrics.

  def __enter__(self) -> 'Recorder':
    """Claims the folder, and drops rows after the step to resume from."""
    row, sent = self._row, self._traffic
    totals = ledger.totals_at(row, sent) if row else Totals()
    self._ledger = Ledger(
      totals,
      sent,
      steps_per_epoch=None,
      learning_rates=None,
      max_skips=np.iinfo(np.int32).max,  # The loop decides when to stop.
    )
    gather = functools.partial(arrays.gather, workers=self._workers)
    self._fetcher = Fetcher(self._ledger, gather, _FETCH, [self._store.row])
    with contextlib.ExitStack() as stack:
      stack.enter_context(self._store)
      stack.enter_context(self._store.recording())
      stack.push(self._leave)
      self.push(stack.pop_all())
    return self

  def step(self, metrics: Mapping[str, Any]) -> None:
    """Records the next step; call it after every one.

    It reads the values some steps later, so the devices need not wait.

    Args:
      metrics: arrays [workers] by name, returned by the step, or only for the
        workers of this process; the row has their means. Required are `loss`,
        `count` (the examples of the batch) and `synced` (the result of
        `decision`). For `relative_change` (the trigger's `change`), the value
        of each worker is kept. The report also shows `lr` and the values that
        the parts report, such as `threshold`.
    """
    self._check(metrics)
    self._fetcher.add(
      {
        name: value if isinstance(value, jax.Array) else jnp.asarray(value)
        for name, value in metrics.items()
      }
    )
    self._fetcher.enter_ready()
    self._is_open = True

  def evaluate(
    self, score: Callable[..., Mapping[str, Any]], *arguments: Any
  ) -> Scores:
    """Adds scores on the validation split to the row of the newest step.

    Args:
      score: a function that returns scores by name, such as `loss` and
        `accuracy`. Its time does not count as training.
      *arguments: the arguments of `score`.

    Returns:
      The scores as the row has them.
    """
    if not self._is_open:
      raise ConfigError(
        'evaluate: must come after a step, once, and before flush'
      )
    self._is_open = False
    self._scores = self._fetcher.enter_all(
      lambda: _named('validation', score(*arguments))
    )
    return self._scores

  def flush(self) -> None:
    """Writes the rows of all steps so far to disk.

    Call it before saving a checkpoint, so that a loop that resumes from there
    finds its row.
    """
    self._is_open = False
    self._fetcher.enter_all()
    self._store.seal()

  def finish(self, test: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Writes the summary of the finished run.

    Args:
      test: scores on the test split, if there is one.

    Returns:
      The summary, as in `summary.json`.
    """
    self.flush()
    scores = self._scores | _named('test', test or {})
    about = history.identity(self._config)
    return self._store.finish(about | self._ledger.summary() | scores)

  def _leave(self, kind: Any, *_: Any) -> None:
    """Keeps the last rows, unless the devices or processes may have failed."""
    if kind is None or issubclass(kind, SystemExit):
      self.flush()

  def _check(self, metrics: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for metrics that cannot make a row."""
    tasks.check_names('metrics', metrics)
    workers = self._workers
    scales = (scale for _, scale, _ in self._traffic.scaled)
    for name in ('loss', 'count', 'synced', *scales):
      if name not in metrics:
        raise ConfigError(f'metrics: {name} is missing')
    for name, value in metrics.items():
      if name in _TAKEN or history.is_score(name):
        raise ConfigError(f'metrics.{name}: is the name of a built-in column')
      shape = np.shape(value)
      if shape not in [(workers,), (workers // jax.process_count(),)]:
        raise ConfigError(
          f'metrics.{name}: must be an array [workers], of shape ({workers},), '
          f'but has shape {shape}'
        )
      is_global = not getattr(value, 'is_fully_replicated', True)
      if jax.process_count() > 1 and shape == (workers,) and not is_global:
        raise ConfigError(
          f'metrics.{name}: has the values of all workers in every process; '
          'pass the array that the step returned, or the values of the workers '
          'of this process'
        )
    self._names = self._names or {*metrics}
    if changed := sorted(self._names ^ metrics.keys()):
      raise ConfigError(
        f'metrics: {", ".join(changed)}: must be given at every step or at none'
      )


def _config(
  workers: int, strategy: Strategy, to: Sequence[str], more: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the config of the run, with every field that its readers need."""
  usual = Strategy(strategy.trigger)
  parts = [str(strategy.trigger)] + [
    str(part)
    for part, default in zip(strategy[1:4], usual[1:4], strict=True)
    if str(part) != str(default)
  ]
  own = {
    'workers': workers,
    'sync': {'method': ', '.join(parts)},
    'log': {'every': 1, 'to': [*to]},
  }
  if taken := sorted(own.keys() & more.keys()):
    raise ConfigError(f'config.{taken[0]}: the recorder sets it; leave it out')
  try:
    return records.checked_config({**more, **own})
  except (TypeError, ValueError) as error:
    raise ConfigError(f'config: {error}') from error


def _rows(workdir: pathlib.Path, step: int, workers: int) -> list[Row]:
  """Returns the rows up to a step, which must be one of them unless it is 0.

  The run must have had the same number of workers, because the bytes of BSP
  depend on it.
  """
  if step == 0:
    if summary := records.read_summary(workdir):
      raise ConfigError(
        f'workdir={workdir}: holds a finished run of {summary["steps"]} steps; '
        'choose another folder, or restart=True'
      )
    return []
  rows = [row for row in records.read_metrics(workdir) if row['step'] <= step]
  if not rows or rows[-1]['step'] != step:
    raise ConfigError(
      f'step={step}: {workdir} has no row of this step; call flush before '
      'saving a checkpoint'
    )
  with contextlib.suppress(files.DamagedFile):  # It is written again.
    config = records.read_config(workdir)
    if config and config['workers'] != workers:
      raise ConfigError(
        f'workers={workers}: must be {config["workers"]}, as in {workdir}, or '
        'start again with restart=True'
      )
  return rows


def _named(split: str, scores: Mapping[str, Any]) -> Scores:
  """Returns scores as columns, such as `validation_loss`."""
  tasks.check_names(f'{split} scores', scores)
  return {f'{split}_{name}': float(value) for name, value in scores.items()}
