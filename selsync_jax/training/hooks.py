"""The work between steps: record, evaluate, save, stop.

Metrics are fetched from the devices a few steps late, so that the devices never
wait for the host.
"""

from collections.abc import Callable, Iterable
import contextlib
import pathlib
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from selsync_jax.cluster.preemption import Preemption
from selsync_jax.config import Stopped
from selsync_jax.devices import arrays
from selsync_jax.runs.ledger import Ledger
from selsync_jax.runs.ledger import Totals
from selsync_jax.runs.session import Session
from selsync_jax.sync import replicas
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.problem import Problem
from selsync_jax.training.progress import Progress
from selsync_jax.training.setup import Plan
from selsync_jax.training.step import refuse_unequal

Row = dict[str, Any]
Scores = dict[str, float]


class Recorder:
  """Enters the metrics of every step into the ledger; `takers` take its rows.

  The metrics of `fetch` steps are fetched together; `gather` adds those of the
  other programs' workers. A message about replicas that differ has one of the
  `leaf_names`, those of the parameters.
  """

  def __init__(
    self,
    ledger: Ledger,
    gather: Callable[[Any], Any],
    leaf_names: list[str],
    fetch: int,
    takers: Iterable[Callable[[Row], None]],
  ):
    self.totals: Totals = ledger.totals
    self._ledger, self._names, self._takers = ledger, leaf_names, tuple(takers)
    self._gather, self._fetch = gather, fetch
    self._most = 1  # Pending steps; the first, which compiles, is alone.
    self._pending: list[Any] = []  # Metrics on the devices, oldest first.
    self._entered = False  # Whether any step of this session was.
    self._began = time.monotonic() - ledger.totals.seconds

  def begin_again(self) -> None:
    """Treats the next step like the first, which is alone and not timed."""
    self._most, self._entered = 1, False

  def add(self, metrics: Any) -> None:
    """Queues a step, whose metrics may still be computed."""
    self._pending.append(metrics)

  def enter_ready(self) -> None:
    """Enters all but the newest step, if enough steps are pending.

    The newest one keeps the devices busy meanwhile.
    """
    if len(self._pending) > self._most:
      self._enter(len(self._pending) - 1)
      self._most = self._fetch

  def enter_all(self, score: Callable[[], Scores] = dict) -> Scores:
    """Enters all pending steps, the last one with its scores; returns these.

    The time of `score` is not counted.
    """
    return self._enter(len(self._pending), score)

  def _enter(self, count, score=dict) -> Scores:
    if not count:
      return score()
    ready, self._pending = self._pending[:count], self._pending[count:]
    local = [jax.tree.map(arrays.local_values, metrics) for metrics in ready]
    steps = self._gather(jax.tree.map(lambda *x: np.stack(x), *local))
    before, now = self.totals.seconds, time.monotonic() - self._began
    if not self._entered:
      now = before  # Exclude the step that compiles.
    self._entered = True
    scores = score()
    self._began = time.monotonic() - now  # Exclude the evaluation.
    for i in range(count):
      metrics = {name: values[i] for name, values in steps.items()}
      step = self.totals.steps + 1
      refuse_unequal(int(metrics['unequal'][0]), self._names, step)
      seconds = before + (now - before) * (i + 1) / count
      row = self._ledger.enter(metrics, seconds)
      for take in self._takers:
        take(row | scores if i == count - 1 else row)
    return scores


class Due(NamedTuple):
  """What is due after a step."""

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
    session: Session,
    problem: Problem,
    plan: Plan,
    ledger: Ledger,
    evaluator: Evaluator,
    watches: Iterable[Callable[[Row], None]] = (),
  ):
    super().__init__()
    self._session, self._problem, self._plan = session, problem, plan
    self._evaluator = evaluator
    self._scores: Scores = {}  # Those of the newest step, if any.
    with contextlib.ExitStack() as stack:
      stack.enter_context(session.recording())
      takers = [session.write]
      if session.is_first:
        steps = problem.steps - ledger.totals.shift
        progress = Progress(session.step, steps, plan.config.log.seconds)
        takers += [stack.enter_context(progress).show, *watches]
      self._preemption = stack.enter_context(Preemption(plan.mapper.stopping))
      names = replicas.leaf_names(problem.shapes['params'])
      fetch = plan.config.log.fetch_every
      gather = plan.mapper.gather
      self._recorder = Recorder(ledger, gather, names, fetch, takers)
      self.push(stack.pop_all())

  def record(self, position: int, metrics: Any) -> Due:
    """Records a step, whose metrics may still be computed."""
    self._session.checkpoints.check()
    self._recorder.add(metrics)
    self._scores = {}
    last = position == self._problem.steps
    stops = self._preemption.requested(position)
    evaluates = last or position % self._plan.evaluate_every == 0
    saves = last or stops or position % self._plan.config.checkpoint.every == 0
    if not (evaluates or saves):
      self._recorder.enter_ready()
    return Due(position, evaluates, saves, stops, last)

  def evaluate(self, now: Due, shared: dict[str, Any]) -> None:
    """Scores the consensus of worker-stacked `{'params', 'model_state'}`.

    The session may keep its weights.
    """

    def score():
      mean = self._evaluator.consensus(shared)
      scores = self._evaluator.scores(mean, 'validation')
      step = now.position - self._recorder.totals.shift
      self._session.weights.keep(step, mean, scores, now.is_last)
      return scores

    self._scores = self._recorder.enter_all(score)

  def rehearse(self, state: Any, **more: Any) -> Any:
    """Saves a new run before its first step; returns the state read back.

    Whatever cannot be saved is reported now, not after hours. A resumed run
    keeps its state.
    """
    if self._session.record is not None:
      return state
    return self._session.checkpoints.rehearse(state, self._record(**more))

  def save(self, state: Any, **more: Any) -> None:
    """Starts a checkpoint of worker-stacked arrays, with more JSON values."""
    self._recorder.enter_all()
    step, record = self._recorder.totals.steps, self._record(**more)
    loss = self._scores.get('validation_loss')
    self._session.checkpoints.save(step, state, record, loss)

  def _record(self, **more: Any) -> dict[str, Any]:
    problem, totals = self._problem, self._recorder.totals
    return self._session.new_record(
      totals,
      workers=self._plan.workers,
      present=self._plan.mapper.places[1],
      batch_size=problem.batch_size,
      learning_rate=problem.peak_rate,
      epoch=totals.position / problem.steps_per_epoch,
      **more,
    )

  def stop(self, now: Due) -> None:
    """Raises `Stopped` after a signal, with everything saved."""
    if now.stops or now.is_last:
      # Do not print "saved" before the save has finished.
      self._session.checkpoints.wait()
    if now.stops and not now.is_last:
      step = self._recorder.totals.steps
      raise Stopped(f'stopped by a signal after step {step}')

  def handover(self, now: Due, state: Any) -> pathlib.Path:
    """Saves a checkpoint, and returns its folder; others begin with it.

    The next step is to this program what the first is to them.
    """
    if not now.saves:
      self.save(state)
    checkpoints = self._session.checkpoints
    checkpoints.wait()
    self._recorder.begin_again()
    return checkpoints.folder(self._recorder.totals.steps)

  def final_scores(self, shared: dict[str, Any]) -> Scores:
    """Returns the scores after the last step, also on the test split.

    The test split is read only here, and no row of `metrics.jsonl` has its
    scores: a killed run that resumes scores the same parameters again.
    """
    mean = self._evaluator.consensus(shared)
    scores = self._scores or self._evaluator.scores(mean, 'validation')
    return scores | self._evaluator.scores(mean, 'test')
