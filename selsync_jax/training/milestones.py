"""What happens between steps: evaluation, checkpoints, and stopping."""

import dataclasses
import functools
from typing import Any

from selsync_jax.runs.checkpoints import Checkpoints
from selsync_jax.runs.weights import Keeper
from selsync_jax.training.course import Course
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.preemption import Preemption
from selsync_jax.training.recorder import Recorder
from selsync_jax.training.recorder import Scores


class Stopped(Exception):
  """A signal stopped the run after a step; it is saved, and can be resumed."""


class Milestones:
  """Called after every step; evaluates, saves and stops when it is time.

  Args:
    course: of the run; its experiment says how often.
    recorder: takes the scores.
    evaluator: computes them.
    checkpoints: takes the state.
    keeper: takes the consensus that was evaluated.
    preemption: says whether a signal asks to stop.

  Attributes:
    scores: of the last evaluation.
  """

  def __init__(
    self,
    course: Course,
    recorder: Recorder,
    evaluator: Evaluator,
    checkpoints: Checkpoints,
    keeper: Keeper,
    preemption: Preemption,
  ):
    self._course, self._recorder = course, recorder
    self._experiment = course.experiment
    self._evaluator, self._checkpoints = evaluator, checkpoints
    self._keeper, self._preemption = keeper, preemption
    self.scores: Scores = {}

  def __call__(self, position: int, state: Any) -> None:
    """Does what is due after a step.

    Raises:
      Stopped: after a signal, with everything saved.
    """
    self._checkpoints.check()
    intervals = self._experiment.intervals
    last = position == self._experiment.steps
    stops = self._preemption.requested(position)
    evaluates = last or position % intervals.evaluate == 0
    saves = last or stops or position % intervals.save == 0
    if evaluates or saves:
      score = functools.partial(self._score, position, state)
      self.scores = self._recorder.enter_all(score if evaluates else dict)
      if saves:
        self._save(state)
      if stops or last:
        self._checkpoints.wait()  # What is said to be saved must be.
    if stops and not last:
      step = self._recorder.totals.steps
      raise Stopped(f'stopped by a signal after step {step}')

  def _score(self, position: int, state: Any) -> Scores:
    """Evaluates the consensus, and keeps it if need be."""
    mean = self._evaluator.consensus(self._course.shared(state))
    scores = self._evaluator.scores(mean, 'validation')
    step = position - self._recorder.totals.shift
    last = position == self._experiment.steps
    self._keeper.keep(step, mean, scores, last)
    return scores

  def _save(self, state: Any) -> None:
    totals, experiment = self._recorder.totals, self._experiment
    record = {
      'totals': dataclasses.asdict(totals),
      'workers': experiment.workers,
      'batch_size': experiment.batch_size,
      'learning_rate': experiment.peak_rate,
      'epoch': totals.position / experiment.steps_per_epoch,
      'metrics': self._recorder.seal(),
    }
    loss = self.scores.get('validation_loss')
    arrays, more = self._course.saved(state)
    self._checkpoints.save(totals.steps, arrays, record | more, loss)
