"""The trials of a search, in a study of Optuna that several processes share.

The study is an SQLite file. A process may be killed at any moment: SQLite's
transactions are whole or not at all, while a line of Optuna's journal that is
cut off makes the whole file unreadable. Optuna's dashboard opens it, too.

A trial that was interrupted is continued by whoever comes next: nothing is done
twice. What a trial chooses depends on the seed, its number, and the results
before it alone, so a search that was interrupted goes on as it would have done.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
import contextlib
import fcntl
import pathlib
from typing import Any, NamedTuple
import zlib

import numpy as np
import optuna
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from selsync_jax.config import ConfigError
from selsync_jax.runs import workdir
from selsync_jax.runs.history import Trial
from selsync_jax.tune.judge import create_pruner
from selsync_jax.tune.judge import Judge
from selsync_jax.tune.objective import Objective
from selsync_jax.tune.objective import Point
from selsync_jax.tune.space import Space

DATABASE = 'tune.db'
_PATIENCE = 60.0  # Seconds to wait while another process writes.
_REFUSED = 'refused'  # The attribute of a trial that cannot be.
_DRAWS = 30  # After so many refused ones in a row, a search gives up.
_FEWEST = 4  # Different values from which importances can be estimated.

Make = Callable[[str, Mapping[str, Any]], Trial]
"""`make(method, fields)`: the run of a trial; a `ConfigError` if the fields
cannot be together."""


@contextlib.contextmanager
def turn(folder: pathlib.Path, about: str = 'tune') -> Generator[None]:
  """Waits until no other process is in this context for the same folder."""
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / f'.{about}.lock').open('ab') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield


class Sampler(optuna.samplers.BaseSampler):
  """TPE whose draws depend on seed, trial, field and finished trials alone."""

  def __init__(self, seed: int):
    self._seed = seed

  def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
    """Returns no fields: each is drawn by itself."""
    return {}

  def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
    """Draws nothing."""
    return {}

  def sample_independent(
    self, study: Any, trial: Any, param_name: str, param_distribution: Any
  ) -> Any:
    """Draws a field of a trial."""
    entropy = [self._seed, trial.number, zlib.crc32(param_name.encode())]
    (seed,) = np.random.SeedSequence(entropy).generate_state(1)
    tpe = optuna.samplers.TPESampler(seed=int(seed), multivariate=False)
    return tpe.sample_independent(study, trial, param_name, param_distribution)


class Asked(NamedTuple):
  """A trial that this process has to run."""

  trial: optuna.Trial
  run: Trial
  claim: contextlib.ExitStack  # To be closed when the trial has been told.


class Result(NamedTuple):
  """A finished trial."""

  method: str
  fields: dict[str, Any]
  run: Trial
  value: float | None  # `None` if it was stopped early, or missed the target.
  point: Point | None  # The one that decided, or the best; if it has any.


class Search:
  """A search in a space, for an objective.

  Args:
    folder: the folder of the study and of its runs.
    name: the study's name.
    about: what decides on the results, for JSON: a study of something else is
      refused.
    space: what may be chosen.
    objective: what is best.
    seed: the seed of the draws.
    make: see `Make`.
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
  ):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    self._folder, self._space, self._make = folder, space, make
    self._objective = objective
    self.queued: list[str] = []  # The methods of the first trials.
    with turn(folder):
      self._study = optuna.create_study(
        storage=_storage(folder),
        study_name=name,
        load_if_exists=True,
        direction=objective.direction,
        sampler=Sampler(seed),
        pruner=create_pruner(),
      )
      known = self._study.user_attrs
      for key, value in about.items():
        if known.setdefault(key, value) != value:
          raise ConfigError(
            f'--out={folder}: holds a search with {key} {known[key]}, not '
            f'{value}; take another --out'
          )
        self._study.set_user_attr(key, value)

  def first(self, choices: Mapping[str, Any]) -> None:
    """Makes a trial with these choices one of the first, once."""
    self.queued.append(choices['method'])
    with turn(self._folder):
      self._study.enqueue_trial(dict(choices), skip_if_exists=True)

  def ask(self, count: int) -> Asked | None:
    """Returns a trial to run, or `None` if `count` have been begun.

    A trial whose process was killed comes first.
    """
    with turn(self._folder):
      for frozen in self._study.get_trials(states=[TrialState.RUNNING]):
        trial = optuna.Trial(self._study, frozen._trial_id)
        if isinstance(asked := self._begun(trial), Asked):
          return asked
      refused = 0
      while len(self._trials(TrialState.RUNNING)) < count:
        asked = self._begun(self._study.ask())
        if isinstance(asked, Asked):
          return asked
        if asked is not None:
          refused += 1
        if refused == _DRAWS:
          raise ConfigError(f'{refused} draws in a row were refused: {asked}')
    return None

  @property
  def is_under_way(self) -> bool:
    """Whether a trial has begun and has no result, be its process killed."""
    states = [TrialState.RUNNING]
    return bool(self._study.get_trials(deepcopy=False, states=states))

  def _begun(self, trial: optuna.Trial) -> Asked | ConfigError | None:
    """Returns a trial; or why it cannot be; or `None` while its run is claimed.

    One that cannot be does not count. A run is claimed by another process, or
    by an equal trial: then a later `ask` returns this one.
    """
    claim = contextlib.ExitStack()
    try:
      run = self._make(*self._space.suggest(trial))
    except ConfigError as error:
      trial.set_user_attr(_REFUSED, str(error))
      self._study.tell(trial, state=TrialState.PRUNED)  # TPE avoids it.
      return error
    try:
      claim.enter_context(workdir.claimed(run.workdir, '--out'))
    except ConfigError:
      return None
    trial.set_user_attr('run', str(run.workdir.relative_to(self._folder)))
    return Asked(trial, run, claim)

  def judge(self, asked: Asked, points: Callable[[], Sequence[Point]]) -> Judge:
    """Returns a judge of a run, whose steps so far `points` returns."""
    return Judge(self._study, asked.trial, self._objective, points)

  def tell(self, asked: Asked, judge: Judge) -> None:
    """Records what a trial has reached."""
    point = self._objective.decisive(judge.points, asked.run.is_done)
    shown = point or self._objective.best(judge.points)
    with turn(self._folder):  # So no `ask` takes it for one that was killed.
      asked.trial.set_user_attr('point', shown)
      if point and not judge.is_pruned:
        self._study.tell(asked.trial, self._objective.value(point))
      else:
        self._study.tell(asked.trial, state=TrialState.PRUNED)

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
        point and Point(*point),
      )
      found.append(result)
    return sorted(found, key=lambda each: self._objective.rank(each.value))

  def importances(self, method: str | None = None) -> dict[str, float]:
    """Returns the share of the values' variance that each choice explains.

    By fANOVA (Hutter et al., `An Efficient Approach for Assessing
    Hyperparameter Importance`, ICML 2014), over the choices that all trials
    have, or all of a method. It is empty if too few trials have a value.
    """
    study = optuna.create_study(direction=self._objective.direction)
    for frozen in self._study.get_trials(states=[TrialState.COMPLETE]):
      if method in (None, frozen.params['method']):
        study.add_trial(frozen)
    if len({frozen.value for frozen in study.trials}) < _FEWEST:
      return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _storage(folder: pathlib.Path) -> optuna.storages.RDBStorage:
  """Returns the storage of a folder; the file is made on first use.

  Each transaction closes its connection. A pool would leave connections open
  until Python finds them, because Optuna never closes a storage.
  """
  return optuna.storages.RDBStorage(
    f'sqlite:///{(folder / DATABASE).resolve()}',
    engine_kwargs={
      'connect_args': {'timeout': _PATIENCE},
      'poolclass': NullPool,
    },
  )
