"""The compiled functions of a run."""

from selsync_jax.runs import provenance
from selsync_jax.training import start
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.participants import Participants
from selsync_jax.training.settings import Settings
from selsync_jax.training.setup import create_setup


class Programs:
  """The functions of a run, each compiled at its first call.

  If the program `prepares`, the constructor calls each function once, and drops
  the results. These calls run every branch without waiting for other programs.
  It also does other slow work, so that the others need not wait for it later.

  Args:
    settings: the run's settings. If the run resumes, they are adapted to its
      checkpoint, but not in a program that prepares.
    participants: the programs that call these functions.

  Attributes:
    settings: the argument `settings`.
    setup: the run's setup.
    step: see `Participants.train_step`.
    evaluator: the evaluator of the consensus.

  Raises:
    ConfigError: if the settings contradict each other, or do not fit the
      devices.
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
      _ = setup.digest, problem.rates, provenance.origin()  # Cached.
