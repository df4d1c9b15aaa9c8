"""The processes of one run in a simulated world; process 0 coordinates."""

from selsync_jax.cluster import world
from selsync_jax.cluster.protocol import messages
from tests.support.simulator.world import Program, STEPS, TIMEOUT, World


class Process(Program):
  """A process of a run, whose steps are collectives."""

  begun = 0  # Steps in whose collective it is, or was.

  def train(self):
    """The loop of a process; its result says how the process ended."""
    machine = self.machine
    yield from machine.enter()
    while self.step < STEPS:
      yield from self.work()
      yield from self.collective()
      yield from self.sleep(self.world.rng.uniform(0.0, 0.1))
      self.step += 1
      if (yield from machine.stops_after(self.step)):
        break
    yield from machine.answer(machine.arrive('leave'))
    return 'finished'

  def collective(self):
    """Waits until all processes are in the same step."""
    self.begun, others = self.step + 1, self.world.members.values()
    for other in others:
      other.later(self.world.rng.uniform(0.0, 0.01), other.advance)
    while any(other.begun <= self.step for other in others):
      yield

  def resume(self):
    """Ends with the others also in a collective, as in `world.World`."""
    if self.machine.error:
      raise self.machine.error
    super().resume()

  def freeze(self, seconds):
    super().freeze(seconds)
    if self.name == '0':
      self.world.point.freeze(seconds)

  def kill(self):
    super().kill()
    if self.name == '0':
      self.world.point.kill()


class Processes(World):
  """The processes of a run. Each of them is needed."""

  def __init__(self, seed, processes):
    self._run = {'processes': f'{processes}'}
    super().__init__(seed, '01234'[:processes], processes)

  def start_point(self):
    """Starts the coordinator, with process 0."""
    if not self.point:
      super().start_point()

  def _coordinator(self, number):
    del number
    return world.Processes(self._run, len(self.names), TIMEOUT)

  def _program(self, name, number):
    join = messages.Join(name, f'{name}:{number}', self._run, TIMEOUT, False)
    return Process(self, world.Process(join, 'host:1'), name)
