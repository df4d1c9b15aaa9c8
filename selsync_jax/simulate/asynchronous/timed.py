"""Rounds of equal time, in which a slow worker takes fewer steps.

References:
  Cheng et al., `EDiT: A Local-SGD-Based Efficient Distributed Training Method
  for Large Language Models`, ICLR 2025 (arXiv 2412.07210), its A-EDiT without
  the penalty, which is the averager `robust_mean` of lockstep methods.
"""

from selsync_jax.config import Positive, Share
from selsync_jax.simulate.algebra import OuterStep
from selsync_jax.simulate.meeting import Meeting, shared_by
from selsync_jax.simulate.simulation import Model, Models, Simulation

_ROUNDING = 1e-9  # Eight times 0.1 seconds, added, are less than 0.8.


def a_edit(
  sim: Simulation,
  *,
  seconds: Positive = 5.0,
  rate: Positive = 0.7,
  momentum: Share = 0.9,
) -> Models:
  """Averages all workers after rounds of equal time, by an outer step.

  A worker takes local steps until the round's time is over, at least one. It
  completes the step that it has begun, so the others wait for part of a step.

  Args:
    seconds: the virtual seconds of a round; the paper's is 600.
    rate: the outer learning rate; 1 without momentum is local SGD.
    momentum: the outer momentum, in [0, 1).
  """
  algebra = sim.algebra
  models = [Model(algebra.initial(), 0)] * sim.workers
  common = algebra.mean([models[0].value])
  step = OuterStep(algebra, rate, momentum)

  def average():
    nonlocal common
    mean = algebra.mean([model.value for model in models])
    common = step(common, algebra.linear([1.0, -1.0], [common, mean]))
    for i, (value, version) in enumerate(models):
      models[i] = Model(algebra.with_shared(value, common), version)

  meeting = shared_by(
    sim.workers, lambda number: Meeting(sim, sim.workers, average)
  )

  def worker(i):
    rounds = 0
    while True:
      began = sim.env.now
      while True:
        gradient, models[i] = yield from sim.local_step(i, models[i])
        sim.use(gradient, gradient.version)
        if sim.env.now - began > seconds * (1 - _ROUNDING):
          break
      yield from meeting(rounds).attend(i)
      rounds += 1

  sim.start(worker)
  return lambda: models
