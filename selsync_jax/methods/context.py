"""The values of a run that its method may need."""

from typing import NamedTuple

import optax


class Context(NamedTuple):
  """The values of a run that its method may need.

  If a parameter of a part's constructor has one of these names, it receives the
  value here and is not a field of the config.

  Attributes:
    steps_per_epoch: steps in which the workers together read one data set.
    seed: the run's seed.
    learning_rate: the local optimizer's schedule.
  """

  steps_per_epoch: int
  seed: int
  learning_rate: optax.Schedule = optax.constant_schedule(0.1)
