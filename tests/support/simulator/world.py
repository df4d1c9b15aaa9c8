"""Members and their coordinator in one process, on a virtual clock.

All messages pass through a `World`. A seed decides how long each one takes.
"""

from collections import defaultdict
import heapq
import itertools
import random

from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.member import FinishedError
from selsync_jax.config import RunError, Stopped
from tests.support.simulator.invariants import Invariants

TICK = 0.2
TIMEOUT = 3.0
STEPS = 14


class Node:
  """A process on a host, which may be frozen or killed."""

  def __init__(self, world, machine):
    self.world, self.machine, self.began = world, machine, world.now
    self.frozen, self.until, self.is_alive = 0.0, 0.0, True

  @property
  def now(self):
    """The process's clock, which stops while the process is frozen."""
    return self.world.now - self.began - self.frozen

  @property
  def is_awake(self):
    return self.is_alive and self.until <= self.world.now

  def freeze(self, seconds):
    """Stops the process for a while."""
    until = self.world.now + seconds
    self.frozen += max(0.0, until - max(self.until, self.world.now))
    self.until = max(self.until, until)

  def later(self, seconds, do, *args):
    """Schedules a call; skipped if the process dies, late if it is frozen."""
    self.world.later(seconds, self, do, *args)


class Connection:
  """A connection of a member to the coordinator."""

  numbers = itertools.count(1)

  def __init__(self, member, point):
    self.number = next(self.numbers)
    self.member, self.point, self.is_up = member, point, True
    self.latest = {'up': 0.0, 'down': 0.0}  # When the last message arrives.
    self.held = 0.0  # Until then, nothing reaches the coordinator.

  def send(self, way, node, do, message):
    """Calls a node with a message later, in the messages' order."""
    world = node.world
    when = world.now + world.rng.uniform(0.001, 0.05)
    when = max(when, world.cut[way][self.member.name], self.latest[way])
    self.latest[way] = when
    world.at(when, node, do, self, message)

  def lose(self, by=None, lag=0.0):
    """Ends the connection; both ends notice, but not `by`, which ended it.

    Args:
      by: the end that has ended it.
      lag: seconds until its last bytes reach the coordinator, which may have
        heard the first bytes of the member's next connection by then.
    """
    world, member = self.member.world, self.member
    self.is_up, member.connection = False, None
    self.held = world.now + lag
    delay = world.rng.uniform(0.0, 0.1)
    unblocked = max(world.now, world.cut['up'][member.name])
    when = max(unblocked + delay, self.latest['up'], self.held + 0.001)
    world.at(when, self.point, self.point.lost, self)
    if by is not member:
      member.later(delay, member.lost)


class Point(Node):
  """The coordinator's process."""

  def __init__(self, world, machine):
    super().__init__(world, machine)
    self.connections = {}

  def tick(self):
    self.machine.tick(self.now)
    self.flush()
    self.later(TICK, self.tick)

  def hear(self, connection, content):
    if connection.held > self.world.now:
      self.world.at(connection.held, self, self.hear, connection, content)
    elif connection.number in self.connections:
      message = messages.from_island(content)
      self.machine.hear(connection.number, message, self.now)
      self.flush()

  def lost(self, connection):
    if self.connections.pop(connection.number, None):
      self.machine.lost(connection.number, self.now)
      self.flush()

  def flush(self):
    """Sends the machine's messages."""
    while self.machine.outgoing:
      numbers, message = self.machine.outgoing.popleft()
      content = messages.encode(message)
      for number in numbers:
        if connection := self.connections.get(number):
          member = connection.member
          connection.send('down', member, member.hear, content)

  def kill(self):
    self.is_alive = False
    for connection in [*self.connections.values()]:
      connection.lose()


class Program(Node):
  """A member's process: its state machine and its program.

  Attributes:
    connection: the connection to the coordinator, if there is one.
    result: a line about how the program has ended.
    step: the number of steps taken.
    busy: the time until which its next step takes.
    shaky: the time until which its connections break as soon as they are made.
    applied: the averages applied, by step.
  """

  def __init__(self, world, machine, name):
    super().__init__(world, machine)
    self.name, self.connection, self.result = name, None, None
    self.step, self.busy, self.shaky, self.applied = 0, 0.0, 0.0, {}
    self.loop = self.train()

  @property
  def runs(self):
    return self.is_alive and not self.result

  def dial(self):
    """Connects to the coordinator, as soon as that is possible."""
    world, point = self.world, self.world.point
    if self.result or self.connection:
      return
    cuts = (cut[self.name] for cut in world.cut.values())
    if not point.is_alive or max(point.until, *cuts) > world.now:
      return self.later(0.2, self.dial)
    self.connection = connection = Connection(self, point)
    point.connections[connection.number] = connection
    if self.shaky > world.now:
      world.later(world.rng.uniform(0.0, 0.1), None, self.reset)
    self.machine.opened()
    self.flush()

  def reset(self):
    """Cuts the connection, whose last bytes may arrive late."""
    self.close(
      lag=self.world.rng.choice([0.0, self.world.rng.uniform(0.0, 3.0)])
    )

  def lost(self):
    self.machine.lost()
    self.advance()
    if not self.result:
      self.later(0.1, self.dial)

  def tick(self):
    if not self.result:
      self.machine.tick(self.now)
      self.flush()
      self.advance()
      self.later(TICK, self.tick)

  def hear(self, connection, content):
    if connection.is_up and not self.result:
      self.machine.hear(messages.from_coordinator(content), self.now)
      self.flush()
      self.advance()

  def flush(self):
    """Sends the machine's messages."""
    while self.machine.outgoing:
      content = messages.encode(self.machine.outgoing.popleft())
      if connection := self.connection:
        point = connection.point
        connection.send('up', point, point.hear, content)

  def sleep(self, seconds):
    """Works for a while."""
    until = self.world.now + seconds
    self.later(seconds, self.advance)
    while self.world.now < until:
      yield

  def work(self):
    """Computes a step."""
    yield from self.sleep(self.world.pace * self.world.rng.uniform(0.5, 1.5))
    yield from self.sleep(max(0.0, self.busy - self.world.now))

  def advance(self):
    """Runs the program as far as possible."""
    if not self.runs:
      return
    try:
      self.resume()
    except StopIteration as done:
      self.end(done.value)
    except FinishedError:
      self.end('has nothing to do')
    except Stopped:
      self.end('left')
    except RunError as error:
      self.end(str(error))
      self.world.check.ended(self)
    self.flush()

  def resume(self):
    next(self.loop)

  def end(self, result):
    """Ends the program, and then its connection."""
    self.flush()
    self.result = result
    self.last_point = self.world.last_point = self.world.point
    self.close(by=self)

  def kill(self):
    self.is_alive = False
    self.reset()

  def close(self, by=None, lag=0.0):
    """Ends the connection, if there is one; see `Connection.lose`."""
    if self.connection:
      self.connection.lose(by, lag)


class World:
  """All processes, the network between them, and the time.

  Args:
    seed: decides the delays.
    names: the members' names.
    minimum: the least number of members that train.
    lies: how members lie, by name.
  """

  def __init__(self, seed, names, minimum, lies=None):
    self.rng, self.now = random.Random(seed), 0.0
    self.names, self.minimum, self.lies = names, minimum, lies or {}
    self.pace = self.rng.choice([0.2, 0.5])
    self.is_late = self.rng.random() < 0.3
    self._events, self._order = [], itertools.count()
    self.number, self.check = itertools.count(), Invariants(self)
    self.members, self.by_address, self.every = {}, {}, []
    self.point = None
    self.heal()
    for name in names:
      self.start(name)

  def at(self, when, node, do, *args):
    """Schedules a call of a node, or of no node, after earlier ones."""
    heapq.heappush(self._events, (when, next(self._order), node, do, args))

  def later(self, seconds, node, do, *args):
    """Schedules a call; see `at`, and `Node.later`."""
    self.at(self.now + seconds, node, do, *args)

  def advance(self):
    """Advances to the next event; returns whether there was one."""
    if not self._events:
      return False
    when, _, node, do, args = heapq.heappop(self._events)
    self.now = max(self.now, when)
    if node is None or node.is_awake:
      do(*args)
    elif node.is_alive:
      self.at(node.until, node, do, *args)
    return True

  def run(self, seconds):
    """Runs for some virtual time."""
    end = self.now + seconds
    while self._events and self._events[0][0] <= end:
      self.advance()
    self.now = end

  def start(self, name):
    """Starts a member."""
    program = self._program(name, next(self.number))
    self.members[name] = program
    self.every.append(program)
    self.by_address[program.machine.join.address] = program
    program.later(0.0, program.dial)
    program.tick()

  def start_point(self):
    """Starts a coordinator, unless there is one."""
    if not (self.point and self.point.is_alive):
      self.point = Point(self, self._coordinator(next(self.number)))
      self.point.tick()

  def restart(self, name):
    """Restarts a member that has ended too early."""
    program = self.members[name]
    is_done = program.result in ('finished', 'has nothing to do')
    if not (program.runs or is_done):
      self.start(name)

  def heal(self):
    """Ends all cuts, and restarts the coordinator."""
    # Until when members, or pairs of them, are cut off.
    self.cut = {'up': defaultdict(float), 'down': defaultdict(float)}
    self.cut_pairs = defaultdict(float)
    self.start_point()
