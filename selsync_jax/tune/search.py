"""The trials of a search, in a study of Optuna.

The study is an SQLite file, which Optuna's dashboard can open. SQLite's
transactions are atomic, so a process may be killed at any moment; in Optuna's
journal, a truncated line would make the whole file unreadable.

The next process continues an interrupted trial, so nothing is done twice. The
choices of a trial depend only on the seed, the number of the trial, and earlier
results, so an interruption does not change the search.
"""

from collections.abc import Callable, Mapping, Sequence
import pathlib
from typing import Any, NamedTuple
import zlib

import optuna
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from selsync_jax.config import ConfigError
from selsync_jax.runs.history import Trial
from selsync_jax.tune.attempt import Attempt, create_pruner
from selsync_jax.tune.objective import NOWHERE, Objective, Point
from selsync_jax.tune.space import Space

DATABASE = 'tune.db'
_PATIENCE = 60.0  # Seconds to wait while another thread writes.
_REFUSED = 'refused'  # The attribute of a trial with impossible choices.
_DRAWS = 30  # A search gives up after this many refusals in a row.

Make = Callable[[str, Mapping[str, Any]], Trial]
"""`make(method, fields)`: the run of a trial; a `ConfigError` if the fields
contradict each other."""

Read = Callable[[Trial], Callable[[], Sequence[Point]]]
"""`read(run)()`: the points of a run so far, in their order."""


class Result(NamedTuple):
  """A finished trial, or a run with another seed."""

  method: str
  fields: Mapping[str, Any]
  run: Trial
  value: float | None  # `None` if it was stopped early, or missed the target.
  point: Point  # The decisive one, or the best, or `NOWHERE`.

  @property
  def label(self) -> str:
    """The method with its settings."""
    return f'{self.run.label}, lr {self.run.learning_rate:g}'


class Search:
  """A search in a space, for an objective.

  Args:
    folder: the folder of the study and of its runs.
    name: the study's name.
    about: everything that affects the results, for JSON; a study with other
      values is refused.
    space: the choices of the trials.
    objective: the objective of the search.
    seed: the seed of the draws.
    make: see `Make`.
    read: see `Read`.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    name: str,
    about: Mapping[str, Any],
    space: Space,
    objective: Objective,
    seed: int,
    make: Make,
    read: Read,
  ):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    self._folder, self._space, self._seed = folder, space, seed
    self._objective, self._make, self._read = objective, make, read
    self.queued: list[str] = []  # The methods of the first trials.
    self._study = optuna.create_study(
      storage=_storage(folder),
      study_name=name,
      load_if_exists=True,
      direction=objective.direction,
      pruner=create_pruner(),
    )
    known = self._study.user_attrs
    for key, value in about.items():
      if known.setdefault(key, value) != value:
        raise ConfigError(
          f'--out={folder}: holds a search with {key} {known[key]}, not '
          f'{value}; choose another --out'
        )
      self._study.set_user_attr(key, value)
    # Trials of a process that was killed.
    self._interrupted = [
      optuna.Trial(self._study, frozen._trial_id)
      for frozen in self._study.get_trials(states=[TrialState.RUNNING])
    ]

  def first(self, choices: Mapping[str, Any]) -> None:
    """Queues a trial with these choices as one of the first, once."""
    self.queued.append(choices['method'])
    self._study.enqueue_trial(dict(choices), skip_if_exists=True)

  def ask(self, count: int) -> Attempt | None:
    """Returns a trial to run; `None` if `count` have begun.

    Interrupted trials come first. A refused trial does not count.
    """
    refused = 0
    while self._interrupted or len(self._trials(TrialState.RUNNING)) < count:
      trial = self._interrupted.pop(0) if self._interrupted else self._next()
      try:
        run = self._make(*self._space.suggest(trial))
      except ConfigError as error:
        trial.set_user_attr(_REFUSED, str(error))
        self._study.tell(trial, state=TrialState.PRUNED)  # TPE avoids it.
        refused += 1
        if refused == _DRAWS:
          raise ConfigError(
            f'{refused} draws in a row were refused: {error}'
          ) from error
        continue
      trial.set_user_attr('run', str(run.workdir.relative_to(self._folder)))
      return Attempt(trial, self._objective, run, self._read(run))
    return None

  def _next(self) -> optuna.Trial:
    """Returns a new trial, whose draws depend on its number alone."""
    trial = self._study.ask()
    seed = zlib.crc32(f'{self._seed}, {trial.number}'.encode())
    self._study.sampler = optuna.samplers.TPESampler(seed=seed)
    return trial

  def _trials(self, *states: TrialState) -> list[optuna.trial.FrozenTrial]:
    """Returns the trials that ended with a result, and those in `states`."""
    counted = TrialState.COMPLETE, TrialState.PRUNED, *states
    found = self._study.get_trials(deepcopy=False, states=counted)
    return [trial for trial in found if _REFUSED not in trial.user_attrs]

  @property
  def done(self) -> int:
    """The number of trials that ended with a result."""
    return len(self._trials())

  def results(self) -> list[Result]:
    """Returns the finished trials, the best first."""
    found = []
    for frozen in self._trials():
      method, fields = self._space.suggest(frozen)
      is_complete = frozen.state == TrialState.COMPLETE
      point = frozen.user_attrs['point']
      result = Result(
        method,
        fields,
        self._make(method, fields),
        frozen.value if is_complete else None,
        Point(*point) if point else NOWHERE,
      )
      found.append(result)
    return sorted(found, key=lambda each: self._objective.rank(each.value))


def _storage(folder: pathlib.Path) -> optuna.storages.RDBStorage:
  """Returns the storage of a folder; both are made on first use.

  Each transaction closes its connection. A pool would leave connections open
  until Python finds them, because Optuna never closes a storage.
  """
  folder.mkdir(parents=True, exist_ok=True)
  return optuna.storages.RDBStorage(
    f'sqlite:///{(folder / DATABASE).resolve()}',
    engine_kwargs={
      'connect_args': {'timeout': _PATIENCE},
      'poolclass': NullPool,
    },
  )
