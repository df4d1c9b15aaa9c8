"""The work between steps: record, evaluate, save, stop."""

from collections.abc import Callable, Iterator
import contextlib
from typing import Any, NamedTuple

from selsync_jax.config import Stopped
from selsync_jax.runs.ledger import Ledger
from selsync_jax.runs.session import Session
from selsync_jax.sync import replicas
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.preemption import Preemption
from selsync_jax.training.problem import Problem
from selsync_jax.training.progress import Progress
from selsync_jax.training.recorder import Recorder
from selsync_jax.training.recorder import Row
from selsync_jax.training.recorder import Scores
from selsync_jax.training.setup import Plan


class Due(NamedTuple):
  """What is due after a step.

  Attributes:
    position: the position in the data after the step.
    evaluates: whether to evaluate the consensus.
    saves: whether to save a checkpoint.
    stops: whether a signal asks to stop.
    is_last: whether it was the run's last step.
  """

  position: int
  evaluates: bool
  saves: bool
  stops: bool
  is_last: bool


class Hooks:
  """The functions that a training loop calls after every step.

  Args:
    session: the session, which takes rows, weights and checkpoints.
    problem: what is trained.
    plan: how often things happen.
    recorder: the recorder, which takes the metrics.
    evaluator: the evaluator, which computes the scores.
    preemption: whether a signal asks to stop.
  """

  def __init__(
    self,
    session: Session,
    problem: Problem,
    plan: Plan,
    recorder: Recorder,
    evaluator: Evaluator,
    preemption: Preemption,
  ):
    self._session, self._problem, self._plan = session, problem, plan
    self._recorder, self._evaluator = recorder, evaluator
    self._preemption = preemption
    self._scores: Scores = {}  # Those of the newest step, if any.

  def record(self, position: int, metrics: Any) -> Due:
    """Records a step, whose metrics may still be computed."""
    self._session.check()
    self._recorder.add(metrics)
    self._scores = {}
    last = position == self._problem.steps
    stops = self._preemption.requested(position)
    evaluates = last or position % self._plan.evaluate_every == 0
    saves = last or stops or position % self._plan.save_every == 0
    if not (evaluates or saves):
      self._recorder.enter_ready()
    return Due(position, evaluates, saves, stops, last)

  def evaluate(self, now: Due, shared: dict[str, Any]) -> None:
    """Scores the consensus, whose weights the session may keep.

    Args:
      now: what is due after the step.
      shared: `{'params', 'model_state'}`, worker-stacked.
    """

    def score():
      mean = self._evaluator.consensus(shared)
      scores = self._evaluator.scores(mean, 'validation')
      step = now.position - self._recorder.totals.shift
      self._session.keep(step, mean, scores, now.is_last)
      return scores

    self._scores = self._recorder.enter_all(score)

  def rehearse(self, state: Any, **more: Any) -> None:
    """Saves a new run before its first step, see `Session.rehearse`.

    Whatever cannot be saved is reported now, not after hours.

    Args:
      state: see `save`.
      **more: see `save`.
    """
    if self._session.record is None:
      about = self._about() | more
      self._session.rehearse(self._recorder.totals, state, about)

  def save(self, state: Any, **more: Any) -> None:
    """Starts a checkpoint.

    Args:
      state: worker-stacked arrays.
      **more: other values that the run needs to resume, which JSON can hold.
    """
    self._recorder.enter_all()
    about = self._about() | more
    self._session.save(self._recorder.totals, state, about, self._scores)

  def _about(self) -> dict[str, Any]:
    problem, totals = self._problem, self._recorder.totals
    return {
      'workers': self._plan.workers,
      'batch_size': problem.batch_size,
      'learning_rate': problem.peak_rate,
      'epoch': totals.position / problem.steps_per_epoch,
    }

  def stop(self, now: Due) -> None:
    """Raises `Stopped` after a signal, with everything saved."""
    if now.stops or now.is_last:
      self._session.wait()  # Do not print "saved" before the save has finished.
    if now.stops and not now.is_last:
      step = self._recorder.totals.steps
      raise Stopped(f'stopped by a signal after step {step}')

  def final_scores(self, shared: dict[str, Any]) -> Scores:
    """Returns the scores after the last step, also on the test split.

    The test split is read only here, and no row of `metrics.jsonl` has its
    scores: a killed run that resumes scores the same parameters again.
    """
    mean = self._evaluator.consensus(shared)
    scores = self._scores or self._evaluator.scores(mean, 'validation')
    return scores | self._evaluator.scores(mean, 'test')


@contextlib.contextmanager
def hooks(
  session: Session,
  problem: Problem,
  plan: Plan,
  ledger: Ledger,
  evaluator: Evaluator,
  watch: Callable[[Row], None] = lambda row: None,
) -> Iterator[Hooks]:
  """Yields the hooks of a run; records, shows progress and handles signals.

  Args:
    session: the session, whose folder is claimed.
    problem: what is trained.
    plan: where the run takes place, and how often things happen.
    ledger: the ledger, which counts the steps.
    evaluator: the evaluator, which computes the scores.
    watch: a function that also takes each row, in the first process.
  """
  totals = ledger.totals
  with contextlib.ExitStack() as stack:
    stack.enter_context(session.recording(totals.steps))
    takers = [session.write]
    if session.is_first:
      steps = problem.steps - totals.shift
      progress = Progress(totals.steps, steps, plan.line_seconds)
      takers += [stack.enter_context(progress).show, watch]
    preemption = stack.enter_context(Preemption())
    names = replicas.leaf_names(problem.shapes['params'])
    recorder = Recorder(ledger, plan.workers, names, plan.fetch_every, takers)
    yield Hooks(session, problem, plan, recorder, evaluator, preemption)
