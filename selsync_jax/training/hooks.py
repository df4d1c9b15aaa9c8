"""The work between steps: record, evaluate, save, stop."""

from collections.abc import Callable, Iterable
import contextlib
import functools
from typing import Any, NamedTuple

import ml_collections

from selsync_jax.config import Stopped
from selsync_jax.runs import history
from selsync_jax.runs.fetching import Fetcher, Scores
from selsync_jax.runs.ledger import Ledger
from selsync_jax.runs.records import Row
from selsync_jax.runs.store import Store
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.participants import Participants
from selsync_jax.training.problem import Problem
from selsync_jax.training.progress import Progress
from selsync_jax.training.warnings import NotFiniteWarning


class Due(NamedTuple):
  """The work that is due after a step."""

  position: int  # The position in the data after the step.
  evaluates: bool
  saves: bool
  stops: bool  # A signal asks to stop.
  is_last: bool


class Hooks(contextlib.ExitStack):
  """The functions that a training loop calls after every step.

  In the context, steps are recorded, progress is shown and signals are handled.
  In the first process, `watches` also take each row.
  """

  def __init__(
    self,
    store: Store,
    problem: Problem,
    config: ml_collections.ConfigDict,
    ledger: Ledger,
    evaluator: Evaluator,
    participants: Participants,
    watches: Iterable[Callable[[Row], None]] = (),
  ):
    super().__init__()
    self._store, self._problem, self._config = store, problem, config
    self._evaluator, self._participants = evaluator, participants
    self._ledger = ledger
    self._scores: Scores = {}  # The newest step's, if any.
    self._not_finite = NotFiniteWarning()
    with contextlib.ExitStack() as stack:
      stack.enter_context(store.recording())
      takers = [store.row]
      if store.is_first:
        steps = problem.steps - ledger.totals.shift
        progress = Progress(store.step, steps, config.log.print_every_seconds)
        takers += [stack.enter_context(progress).show]
        takers += [self._not_finite.watch, *watches]
      stack.enter_context(participants.preemption)
      fetch = config.log.fetch_every
      gather = participants.mapper.gather
      self._fetcher = Fetcher(ledger, gather, fetch, takers)
      self.push(stack.pop_all())

  def record(self, position: int, metrics: Any) -> Due:
    """Records a step, whose metrics may still be computed."""
    self._store.checkpoints.check()
    self._fetcher.add(metrics)
    self._scores = {}
    last = position == self._problem.steps
    stops = self._participants.stops_after(position)
    evaluates = last or position % self._problem.evaluate_every == 0
    saves = last or stops or position % self._config.checkpoint.every == 0
    if not (evaluates or saves):
      self._fetcher.enter_ready()
    return Due(position, evaluates, saves, stops, last)

  def evaluate(self, now: Due, shared: dict[str, Any]) -> None:
    """Scores the consensus of worker-stacked `{'params', 'model_state'}`.

    The store may keep its weights.
    """

    def score():
      mean = self._evaluator.consensus(shared)
      scores = self._evaluator.scores(mean, 'validation')
      step = now.position - self._fetcher.totals.shift
      self._store.weights(step, mean, scores, now.is_last)
      return scores

    self._scores = self._fetcher.enter_all(score)

  def rehearse(self, state: Any, **more: Any) -> None:
    """Saves a new run before its first step, see `Store.rehearse`."""
    totals, about = self._fetcher.totals, self._about(more)
    self._store.rehearse(state, totals, **about)

  def save(self, state: Any, **more: Any) -> None:
    """Starts a checkpoint of worker-stacked arrays, with more JSON values."""
    self._fetcher.enter_all()
    totals, about = self._fetcher.totals, self._about(more)
    self._store.checkpoint(state, totals, **about)

  def _about(self, more: dict[str, Any]) -> dict[str, Any]:
    problem, totals = self._problem, self._fetcher.totals
    return {
      'workers': self._participants.mapper.workers,
      'batch_size': problem.batch_size,
      'learning_rate': problem.peak_rate,
      'epoch': totals.position / problem.steps_per_epoch,
      **self._participants.record(),
      **more,
    }

  def stop(self, now: Due) -> None:
    """Raises `Stopped` after a signal, with everything saved.

    A signal may also have come since the last step.
    """
    stops = now.stops
    if stops or now.is_last:
      # Do not print "saved" before the save has finished.
      self._store.checkpoints.wait()
    if now.is_last:
      stops = self._participants.stops_after_last(now.position)
    if stops:
      step = self._fetcher.totals.steps
      raise Stopped(f'stopped by a signal after step {step}')

  def welcome(self, now: Due, state: Any) -> None:
    """Admits waiting programs, to which one program sends its state.

    That program also saves the state, while the joining ones load it. The next
    step counts as a first step in all programs.
    """
    if now.is_last or not self._participants.admits:
      return
    self._fetcher.enter_all()
    self._fetcher.begin_again()
    totals = self._fetcher.totals
    about = self._about(self._participants.record(copied=not now.saves))

    @functools.cache  # Called twice if a program ends.
    def pack() -> bytes:
      return self._store.packed(state, totals, **about)

    self._participants.welcome(totals.steps, pack)
    if pack.cache_info().currsize and not now.saves:
      self._store.checkpoint(state, totals, **about)

  def results(self, shared: dict[str, Any]) -> dict[str, Any]:
    """Returns the summary after the last step, with scores on the test split.

    The test split is read only here, and no row of `metrics.jsonl` has its
    scores: a killed run that resumes scores the same parameters again.
    """
    mean = self._evaluator.consensus(shared)
    scores = self._scores or self._evaluator.scores(mean, 'validation')
    scores = scores | self._evaluator.scores(mean, 'test')
    if self._store.is_first:
      self._not_finite.watch({'step': self._fetcher.totals.steps, **scores})
    about = history.identity(self._config.to_dict())
    return about | self._ledger.summary() | scores
