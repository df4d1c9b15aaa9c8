"""The compiled functions of a run."""

from selsync_jax.training import start
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.participants import Participants
from selsync_jax.training.settings import Settings
from selsync_jax.training.setup import create_setup


class Programs:
  """The functions of a run, each compiled at its first call.

  While this program `prepares`, each function is called once here, and the
  results are dropped. Every branch runs then, and waits for no other program.

  Args:
    settings: the run's settings, adapted to the checkpoint that it resumes
      unless this program prepares.
    participants: the programs that call them.

  Attributes:
    settings: the same settings.
    setup: the run's setup.
    step: see `Participants.train_step`.
    evaluator: the evaluator of the consensus.

  Raises:
    ConfigError: if the settings do not fit together, or not on the devices.
  """

  def __init__(self, settings: Settings, participants: Participants):
    self.settings, mapper = settings, participants.mapper
    self.setup = setup = create_setup(settings, mapper)
    problem = setup.problem
    mapper.check()
    start.check_size(problem, mapper.devices_per_worker)
    averages = setup.strategy.averages_model_state
    self.evaluator = Evaluator(problem, participants, averages)
    self.step = participants.train_step(setup)
    if participants.prepares:
      batch = next(participants.batches(problem.data, 0, 1))
      state, _ = self.step(setup.initial(), batch)
      self.evaluator.warm_up(setup.landed(state))
      _ = setup.digest, problem.rates  # Cached.
