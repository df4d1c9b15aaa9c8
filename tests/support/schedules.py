"""Islands and their coordinator in one process, on a virtual clock.

All messages go through `World`, which delays them, loses them, and disturbs
processes; a seed decides when and how. After each event the world checks the
invariants.
"""

from collections.abc import Callable, Generator
import heapq
import itertools
import random
import re
import zlib

import numpy as np

from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.coordinator import Coordinator
from selsync_jax.cluster.protocol.member import (
  FinishedError,
  Member,
  Regrouped,
)
from selsync_jax.config import RunError, Stopped
from selsync_jax.data.leases import Leases

TICK = 0.2
TIMEOUT = 3.0
STEPS = 14
DELAY = 2
LENGTH = 2000
POINT = 'the coordinator'
LIES = (
  'another type',
  'a vote of a wrong length',
  'a message of a wrong type',
  'accuses everybody',
  'calls messages wrong',
  'takes fewer steps',
  'names no type',
  'skips a place',
)


class Broken(AssertionError):
  """An invariant does not hold."""


def mix(*parts):
  """Hashes all of these to a number."""
  return zlib.crc32(repr(parts).encode())


class Connection:
  """A connection of an island to the coordinator."""

  numbers = itertools.count(1)

  def __init__(self, process, point):
    self.number = next(self.numbers)
    self.process, self.point, self.is_up = process, point, True
    self.latest = {'up': 0.0, 'down': 0.0}  # When the last message arrives.


class Node:
  """A process on a host, which may be frozen."""

  def __init__(self, now):
    self.began, self.frozen, self.until, self.is_alive = now, 0.0, 0.0, True

  def awake(self, now):
    """Returns the process's clock, which stops while the process is frozen."""
    return now - self.began - self.frozen


class Point(Node):
  """The coordinator's process."""

  def __init__(self, world, number):
    super().__init__(world.now)
    self.machine = Coordinator(
      len(world.names),
      world.minimum,
      20.0,
      world.grace,
      f'{number}',
      world.note,
    )
    self.connections = {}


class Flight:
  """An average in flight."""

  def __init__(self, place, step, message, names):
    self.place, self.step, self.message = place, step, message
    self.names, self.found = names, {}

  @property
  def is_done(self):
    return len(self.found) == len(self.names)

  @property
  def messages(self):
    return [self.found[name] for name in self.names]


class Process(Node):
  """An island's process: its state machine and its loop."""

  def __init__(self, world, name, number):
    super().__init__(world.now)
    self.world, self.name, self.number = world, name, number
    self.lie = world.lies.get(name)
    join = messages.Join(
      name, f'{name}:{number}', {'run': 'x'}, TIMEOUT, True, None, None
    )
    self.machine = Member(join, 'host:1')
    self.connection, self.outbox, self.result = None, {}, None
    self.applied, self.counted, self.open = {}, set(), []
    self.leases = Leases(len(world.names))
    self.params, self.step, self.flight, self.busy = 0, 0, None, 0.0
    self.loop = self.train()

  @property
  def slot(self):
    return self.membership.slots.index(self.name)

  @property
  def membership(self):
    return self.machine.membership

  @property
  def there(self):
    return [self.membership.slots.index(n) for n in self.membership.islands]

  def sleep(self, seconds):
    """Works for a while."""
    until = self.world.now + seconds
    self.world.later(seconds, self, self.advance)
    while self.world.now < until:
      yield

  def train(self) -> Generator[None, None, str]:
    """The loop of an island; its result says how the island ended."""
    machine, rng = self.machine, self.world.rng
    yield from machine.enter()
    if machine.prepares:
      yield from self.sleep(rng.uniform(0.0, 2.0))
      yield from machine.enter_prepared()
    yield from self.agree()
    stop = STEPS - 4 * (self.lie == 'takes fewer steps')
    while self.step < stop:
      cells = self.leases.next(self.there)
      yield from self.sleep(self.world.pace * rng.uniform(0.5, 1.5))
      yield from self.sleep(max(0.0, self.busy - self.world.now))
      cell = cells[self.slot]
      before = self.params, [*self.open]
      synced, arrived = yield from self.complete(self.unit, before, cell)
      late = self.world.is_late
      self.leases.complete(
        self.there, synced=synced, late=late, arrived=arrived
      )
      self.step += 1
      machine.done = messages.Alive(machine.membership.generation, self.step)
      if (yield from machine.stops_after(self.step)):
        break
      if machine.admits and self.leases.may_enter:
        yield from machine.admit()
        yield from self.agree()
    yield from self.complete(lambda: machine.leave(True))
    return 'finished'

  def complete(self, unit: Callable, *args):
    """Repeats work until all islands have completed it."""
    while True:
      try:
        return (yield from unit(*args))
      except Regrouped:
        yield from self.machine.enter()
        self.outbox.clear()

  def unit(self, before, cell):
    """A step: a vote, and an average if one is due."""
    params, open_ = before
    self.params = mix(params, self.slot, self.step)
    self.open = [*open_, cell]
    if self.flight and self.step >= self.flight.step + DELAY:
      return (yield from self.land(self.flight))
    asks = mix(self.slot, self.step) % 4 == 0
    due = yield from self.vote('pmax', 'bool', bytes([asks]))
    if due == b'\0':
      if len(self.there) == 1:
        self.count([self.open])
        self.open = []
      return False, None
    message = self.params, self.open, self.counted
    if self.world.is_late and len(self.there) > 1:
      if not self.flight:
        self.flight = self.depart(message, 'behind')
        self.open = []
        return True, None
      return False, None
    self.open = []
    found = yield from self.exchange(message)
    self.apply(found)
    return True, True if self.world.is_late else None

  def land(self, flight):
    """Applies a delayed average, forming it again if it has not arrived."""
    place = self.machine.arrive('landing', '', 'pmin', 'bool', (), None)
    generation = place.generation
    while (has := flight.place.generation == generation) and not flight.is_done:
      if self.machine.upcoming or self.machine.error:
        has = False
        break
      yield
    self.machine.vote(place, bytes([has]))
    arrived = (yield from self.machine.answer(place)) == b'\1'
    if arrived:
      found = flight.messages
    else:
      found = yield from self.exchange(flight.message)
    if len(self.there) == 1:
      self.count([self.open])
      self.open = []
    self.apply(found)
    self.flight = None
    return False, arrived

  def apply(self, found):
    """Applies an average of the islands' messages."""
    self.params = mix(*(each[0] for each in found))
    self.counted = self.counted.union(*(each[2] for each in found))
    self.count([each[1] for each in found])
    self.world.applied(self)

  def count(self, each):
    """Counts examples that islands have read."""
    cells = [cell for cells in each for cell in cells]
    if len({*cells}) < len(cells) or self.counted.intersection(cells):
      raise Broken(f'{self.name}: an example counts twice')
    self.counted = self.counted.union(cells)

  def vote(self, operation, dtype, body):
    """Returns the folded votes of the islands."""
    shape = () if operation != 'gather' else (len(body),)
    if self.lie == 'a vote of a wrong length' and self.step == 3:
      body += b'!'
    if self.lie == 'skips a place' and self.step == 4:
      generation = self.membership.generation
      self.machine.vote(messages.Place(generation, '', 99, None, 'commit'), b'')
    if self.lie == 'names no type' and self.step == 4:
      dtype, body = 'nonsense', b'!'
    place = self.machine.arrive('vote', '', operation, dtype, shape, body)
    return (yield from self.machine.answer(place))

  def exchange(self, message):
    """Returns all islands' messages, in their order, when all have them."""
    flight = self.depart(message)
    while not flight.is_done:
      self.machine.check()
      yield
    self.machine.check()
    yield from self.machine.answer(self.machine.arrive('commit'))
    return flight.messages

  def depart(self, message, channel=''):
    """Serves a message, and fetches messages of the other islands."""
    dtype = 'float32'
    if self.lie == 'another type' and self.step > 3:
      dtype = 'float64'
    place = self.machine.arrive('average', channel, 'psum', dtype, (LENGTH,))
    if self.lie == 'a message of a wrong type' and self.step > 3:
      dtype = 'int8'
    self.outbox[place.key] = dtype, message
    names = [n for n in self.membership.islands if n != self.name]
    if self.lie in ('accuses everybody', 'calls messages wrong'):
      for name in names:
        wrong = 'int8' * (self.lie == 'calls messages wrong')
        self.machine.accuse(place, name, wrong)
    flight = Flight(place, self.step, message, [*self.membership.islands])
    flight.found[self.name] = message
    for name in names:
      self.fetch(place, name, flight.found, {})
    return flight

  def fetch(self, place, name, found, failing):
    """Asks an island for its message, until the message has arrived."""
    world, now = self.world, self.world.now
    current = self.membership.generation == place.generation
    if not self.is_alive or self.result or not current or name in found:
      return
    address = self.membership.islands[name]
    sender = world.by_address.get(address)
    reached = sender and world.reaches(self.name, name) and world.awake(sender)
    if reached and world.rng.random() > 0.05:
      failing.pop(name, None)
      if place.key in sender.outbox:
        dtype, message = sender.outbox[place.key]
        if dtype == place.dtype:
          found[name] = message
          self.machine.acquit(name)
        else:
          self.machine.accuse(place, name, f'{dtype} at {place}')
        world.later(0.0, self, self.advance)
    elif sender is None or not reached:
      began = failing.setdefault(name, now)
      if now - began > TIMEOUT:
        self.machine.accuse(place, name)
        self.flush()
    if name not in found:
      pause = world.rng.uniform(0.05, 0.3)
      world.later(pause, self, lambda: self.fetch(place, name, found, failing))

  def agree(self):
    """Lets the islands continue from the one with the most steps."""
    own = np.array([self.step]).tobytes()
    whole = yield from self.complete(lambda: self.gather(own))
    steps = np.frombuffer(whole, np.int64)
    best = int(np.argmax(steps))
    donor = self.world.by_address[[*self.membership.islands.values()][best]]
    behind = [
      s for s, n in zip(self.there, steps, strict=True) if n < max(steps)
    ]
    if self.step < donor.step:
      self.step, self.params = donor.step, donor.params
      self.counted, self.open = donor.counted, []
      self.flight = None
      self.applied = dict(donor.applied)
      self.leases.begin(0, donor.leases.to_json())
      machine = self.machine
      machine.done = messages.Alive(machine.membership.generation, self.step)
    yield from self.complete(lambda: self.gather(b'read'))
    self.leases.lose(behind)

  def gather(self, own):
    return (yield from self.vote('gather', 'uint8', own))

  def advance(self):
    """Runs the loop as far as possible."""
    if self.result or not self.is_alive:
      return
    try:
      next(self.loop)
    except StopIteration as done:
      self.result = done.value
    except FinishedError:
      self.result = 'has nothing to do'
    except Stopped:
      self.result = 'left'
    except RunError as error:
      self.result = str(error)
      self.world.ended(self)
    self.flush()
    if self.result:
      self.last_point = self.world.last_point = self.world.point
      self.world.closes(self)

  def flush(self):
    """Sends the machine's messages."""
    while self.machine.outgoing:
      self.world.say_up(self, self.machine.outgoing.popleft())


class World:
  """All processes, the network between them, and the time.

  Args:
    seed: decides the delays.
    islands: N, the number of islands.
    minimum: the least number that trains.
    lies: how islands lie, by name.
    grace: see `Run`.
  """

  def __init__(self, seed, islands=3, minimum=2, lies=None, grace=None):
    self.rng, self.now = random.Random(seed), 0.0
    self.names = [chr(ord('a') + i) for i in range(islands)]
    self.minimum, self.lies, self.grace = minimum, lies or {}, grace
    self.pace = self.rng.choice([0.2, 0.5])
    self.is_late = self.rng.random() < 0.3
    self._events, self._order = [], itertools.count()
    self.suspects, self.asked, self.lines = {*self.lies}, set(), []
    self.cut_up, self.cut_down, self.cut_data = {}, {}, {}
    self.by_address, self.every, self.number = {}, [], itertools.count()
    self.members: dict[str, Process] = {}
    self.point, self.size = None, islands
    self.start_point()
    for name in self.names:
      self.start(name)

  # Time

  def later(self, seconds, node, do):
    """Schedules a call; skipped if the process dies, late if it is frozen."""
    item = self.now + seconds, next(self._order), node, do
    heapq.heappush(self._events, item)

  def advance(self):
    """Advances to the next event; returns whether there was one."""
    if not self._events:
      return False
    when, _, node, do = heapq.heappop(self._events)
    self.now = max(self.now, when)
    if node is None:
      do()
    elif node.is_alive:
      if node.until > self.now:
        self.later(node.until - self.now, node, do)
      else:
        do()
    return True

  def run(self, seconds):
    """Runs for some virtual time."""
    end = self.now + seconds
    while self._events and self._events[0][0] <= end:
      self.advance()
    self.now = end

  def awake(self, node):
    return node.is_alive and node.until <= self.now

  # Processes

  def start(self, name):
    """Starts an island."""
    process = Process(self, name, next(self.number))
    self.members[name] = process
    self.every.append(process)
    self.by_address[process.machine.join.address] = process
    self.later(0.0, process, lambda: self._dial(process))
    self._tick(process)

  def start_point(self):
    """Starts a coordinator."""
    if self.point and self.point.is_alive:
      return
    self.point = Point(self, next(self.number))
    self._tick_point(self.point)

  def _tick(self, process):
    if not process.result:
      process.machine.tick(process.awake(self.now))
      process.flush()
      process.advance()
      self.later(TICK, process, lambda: self._tick(process))

  def _tick_point(self, point):
    point.machine.tick(point.awake(self.now))
    self._flush(point)
    self.later(TICK, point, lambda: self._tick_point(point))

  def kill(self, name):
    """Kills an island."""
    self.suspects.add(name)
    process = self.members[name]
    process.is_alive = False
    self.closes(process)

  def restart(self, name):
    """Restarts an island that has ended."""
    process = self.members[name]
    ends = 'finished', 'has nothing to do'
    has_ended = process.result or not process.is_alive
    if has_ended and process.result not in ends:
      self.start(name)

  def freeze(self, node, seconds):
    """Stops a process for a while."""
    if isinstance(node, Process):
      self.suspects.add(node.name)
    else:
      self.suspects.add(POINT)
    until = self.now + seconds
    node.frozen += max(0.0, until - max(node.until, self.now))
    node.until = max(node.until, until)

  def kill_point(self):
    """Kills the coordinator."""
    self.suspects.add(POINT)
    if not self.point.is_alive:
      return
    self.point.is_alive = False
    for connection in [*self.point.connections.values()]:
      self._lose(connection, None)

  def ask(self, name):
    """Asks an island to stop."""
    process = self.members[name]
    self.suspects.add(name)
    self.asked.add(name)
    if process.is_alive and not process.result:
      process.machine.ask()
      process.flush()

  def cut(self, name, ways, seconds):
    """Cuts an island off from the coordinator, one way or both."""
    self.suspects.add(name)
    for way in ways:
      way[name] = max(way.get(name, 0.0), self.now + seconds)

  def cut_pair(self, one, other, seconds):
    """Cuts the connection from one island to another."""
    self.suspects |= {one, other}
    self.cut_data[one, other] = self.now + seconds

  def reaches(self, one, other):
    return self.cut_data.get((one, other), 0.0) <= self.now

  # Network

  def _dial(self, process):
    if process.result or not process.is_alive or process.connection:
      return
    point, name = self.point, process.name
    blocked = max(
      self.cut_up.get(name, 0.0), self.cut_down.get(name, 0.0), point.until
    )
    if not point.is_alive or blocked > self.now:
      self.later(0.2, process, lambda: self._dial(process))
      return
    process.connection = connection = Connection(process, point)
    point.connections[connection.number] = connection
    process.machine.opened()
    process.flush()

  def closes(self, process):
    """Ends a process's connection."""
    if process.connection:
      self._lose(process.connection, process)

  def keep_busy(self, name, seconds):
    """Makes a step of an island take long, as if it compiled."""
    self.suspects.add(name)
    self.members[name].busy = self.now + seconds

  def reset(self, name):
    """Cuts an island's connection for a moment, as networks sometimes do."""
    self.suspects.add(name)
    process = self.members[name]
    if process.connection:
      self._lose(process.connection, None)

  def _lose(self, connection, by):
    process, point = connection.process, connection.point
    connection.is_up = False
    process.connection = None
    delay = self.rng.uniform(0.0, 0.1)
    blocked = max(0.0, self.cut_up.get(process.name, 0.0) - self.now)
    wait = max(delay + blocked, connection.latest['up'] - self.now)
    self.later(wait, point, lambda: self._lost_point(connection))
    if by is not process:
      self.later(delay, process, lambda: self._lost(process))

  def _lost_point(self, connection):
    point = connection.point
    if point.connections.pop(connection.number, None):
      point.machine.lost(connection.number, point.awake(self.now))
      self._flush(point)

  def _lost(self, process):
    process.machine.lost()
    if not process.result:
      self.later(0.1, process, lambda: self._dial(process))

  def say_up(self, process, message):
    """Sends an island's message to the coordinator."""
    connection = process.connection
    if connection is None:
      return
    content = messages.from_island(messages.encode(message))
    self._carry(
      connection,
      'up',
      self.cut_up,
      connection.point,
      lambda: self._hear_up(connection, content),
    )

  def _carry(self, connection, way, cut, node, do):
    blocked = cut.get(connection.process.name, 0.0)
    when = max(self.now + self.rng.uniform(0.001, 0.05), blocked)
    when = connection.latest[way] = max(when, connection.latest[way])
    self.later(when - self.now, node, do)

  def _hear_up(self, connection, content):
    point = connection.point
    if connection.number in point.connections:
      point.machine.hear(connection.number, content, point.awake(self.now))
      self._flush(point)

  def _flush(self, point):
    while point.machine.outgoing:
      numbers, message = point.machine.outgoing.popleft()
      content = messages.from_coordinator(messages.encode(message))
      for number in numbers:
        if connection := point.connections.get(number):
          self._carry(
            connection,
            'down',
            self.cut_down,
            connection.process,
            lambda c=connection, m=content: self._hear_down(c, m),
          )

  def _hear_down(self, connection, content):
    process = connection.process
    if connection.is_up and not process.result:
      process.machine.hear(content, process.awake(self.now))
      process.flush()
      process.advance()

  # Invariants

  def note(self, kind, island, words, generation=0, present=()):
    """Handles a coordinator's note: ended islands must have been disturbed."""
    self.lines.append((self.now, kind, island, words, generation, present))
    before, self.size = self.size, len(present) or self.size
    if kind != 'ended' or island in self.suspects:
      return
    if not self._may_be_blamed(island, words, before):
      raise Broken(f'{island} {words}, though nothing was done to it')

  def _may_be_blamed(self, island, words, generation_size):
    """A single accuser is believed once; of two islands, both end."""
    if POINT in self.suspects and 'coordinator' in words:
      return True
    is_odd = words == 'is at another place' and self.lies
    if is_odd and generation_size <= 2:
      return True
    if 'calls messages wrong' in self.lies.values():
      self.suspects.add(island)
      return sum(name not in self.lies for name in self.suspects) <= 1
    return POINT in self.suspects and words == 'waits no longer'

  def applied(self, process):
    """Checks an average that an island has applied."""
    names = tuple(process.membership.islands)
    own = process.applied[process.step] = names, process.params
    for other in self.every:
      found = other.applied.get(process.step)
      if found not in (None, own) and other.is_alive and not other.result:
        if other.machine.error or other.until > self.now:
          continue
        if other.membership.generation == process.membership.generation:
          raise Broken(
            f'step {process.step}: {process.name} has applied {own}, '
            f'{other.name} {found}'
          )

  def ended(self, process):
    """Checks the error of an ended island, which must name a culprit."""
    if process.name in self.suspects:
      return
    line = process.result
    named = set(re.findall(r'island (\w+)\b', line)) - {process.name}
    named |= set(re.findall(r'\b(\w)\b(?:, \w)* (?:is|are) at', line))
    if 'coordinator' in line:
      named.add(POINT)
    if not named & self.suspects:
      raise Broken(f'{process.name}: {line!r} names none of {self.suspects}')

  def finish(self, seconds=400.0):
    """Heals everything; then no island may wait any longer."""
    self.cut_up, self.cut_down, self.cut_data = {}, {}, {}
    self.start_point()
    end = self.now + seconds
    while self.now < end and any(self._waits(p) for p in self.every):
      if not self.advance():
        break
    for process in self.every:
      if self._waits(process):
        raise Broken(f'{process.name} waits for ever, at step {process.step}')
    # A new coordinator cannot hear of a run that all its islands have left.
    done = [
      p
      for p in self.every
      if p.result == 'finished' and p.last_point is self.last_point
    ]
    for step in {step for p in done for step in p.applied}:
      found = {p.applied[step] for p in done if step in p.applied}
      if len(found) > 1:
        raise Broken(f'step {step}: the replicas differ: {found}')
    honest = {*self.names} - self.suspects
    of_two = self.lies and self.size <= 2  # With two, either may be odd.
    if len(honest) < self.minimum or of_two:
      return
    if POINT not in self.suspects:
      for name in honest:
        if (result := self.members[name].result) != 'finished':
          raise Broken(f'{name} {result}, though nothing was done to it')

  def _waits(self, process):
    return process.is_alive and not process.result


def play(seed, kinds=None):
  """Runs one schedule; raises `Broken` if an invariant does not hold.

  Args:
    seed: decides everything.
    kinds: the kinds of faults; all if `None`.
  """
  rng = random.Random(seed)
  islands = rng.choice([2, 3, 3, 4, 5])
  minimum = rng.randint(1, islands)
  lies = {}
  if rng.random() < 0.25 and islands > 2:
    lies = {rng.choice('abcde'[:islands]): rng.choice(LIES)}
    minimum = rng.randint(1, islands // 2)
  world = World(seed, islands, minimum, lies, rng.choice([None, None, 2.0]))
  names = world.names
  world.run(rng.uniform(0.0, 3.0))
  for _ in range(rng.randint(0, 5)):
    kind = rng.choice(kinds or [*FAULTS])
    FAULTS[kind](world, rng, rng.choice(names))
    world.run(rng.choice([0.0, 0.01, rng.uniform(0.0, 4.0)]))
  world.finish()
  return world


def _kill(world, rng, name):
  world.kill(name)
  if rng.random() < 0.7:
    world.later(rng.uniform(0.0, 5.0), None, lambda: world.restart(name))


def _kill_point(world, rng, name):
  del name
  world.kill_point()
  world.later(rng.uniform(0.0, 2.0), None, world.start_point)


def _cut(world, rng, name):
  ways = rng.choice(
    [[world.cut_up], [world.cut_down], [world.cut_up, world.cut_down]]
  )
  world.cut(name, ways, rng.uniform(0.1, 6.0))


def _cut_pair(world, rng, name):
  others = [other for other in world.names if other != name]
  pair = [name, rng.choice(others)]
  for one, other in rng.choice([[pair], [pair, pair[::-1]]]):
    world.cut_pair(one, other, rng.uniform(0.1, 12.0))


FAULTS = {
  'kill': _kill,
  'freeze': lambda world, rng, name: world.freeze(
    world.members[name], rng.uniform(0.1, 8.0)
  ),
  'kill the coordinator': _kill_point,
  'freeze the coordinator': lambda world, rng, name: world.freeze(
    world.point, rng.uniform(0.1, 6.0)
  ),
  'cut': _cut,
  'cut a pair': _cut_pair,
  'busy': lambda world, rng, name: world.keep_busy(name, rng.uniform(1.0, 8.0)),
  'reset': lambda world, rng, name: world.reset(name),
  'ask': lambda world, rng, name: world.ask(name),
}
