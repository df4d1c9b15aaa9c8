"""The compiled functions of a run."""

from selsync_jax.training import start
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.participants import Participants
from selsync_jax.training.settings import Settings
from selsync_jax.training.setup import create_setup


class Programs:
  """The functions of a run, each of which is compiled at its first call.

  Args:
    settings: those of the run.
    record: that of the checkpoint from which it goes on, if there is one.
    participants: the programs that call them.

  Attributes:
    setup: the run's.
    step: see `Participants.train_step`.
    evaluator: that of the consensus.

  Raises:
    ConfigError: if the settings do not fit together, or not on the devices.
  """

  def __init__(
    self,
    settings: Settings,
    record: start.Record | None,
    participants: Participants,
  ):
    self._settings, self._scale = settings, start.scale(settings, record)
    self._participants = participants
    mapper = participants.mapper
    self.setup = setup = create_setup(start.adapt(settings, record), mapper)
    problem = setup.problem
    mapper.check()
    start.check_size(problem, mapper.devices_per_worker)
    averages = setup.strategy.averages_model_state
    self.evaluator = Evaluator(problem, participants, averages)
    self.step = participants.train_step(setup)

  def serve(self, record: start.Record | None) -> bool:
    """Returns whether a run that goes on from this record has the same."""
    return self._scale == start.scale(self._settings, record)

  def warm_up(self) -> None:
    """Calls each of them once, and drops what it returns.

    This program `prepares`, so every branch runs, and none is waited for.
    """
    setup = self.setup
    batches = self._participants.batches(setup.problem.data, 0, 1)
    state, _ = self.step(setup.initial(), next(batches))
    self.evaluator.warm_up(setup.landed(state))
    _ = setup.digest, setup.problem.rates  # They are kept.
