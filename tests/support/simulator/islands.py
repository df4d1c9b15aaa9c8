"""Islands that train in a simulated world; some of them lie."""

from collections.abc import Generator
import zlib

import numpy as np

from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.coordinator import Coordinator
from selsync_jax.cluster.protocol.member import Member, Regrouped
from selsync_jax.data.leases import Leases
from tests.support.simulator.world import Program, STEPS, TIMEOUT, World

DELAY = 2
LENGTH = 2000
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


def mix(*parts):
  """Hashes all of these to a number."""
  return zlib.crc32(repr(parts).encode())


class Flight:
  """An average in flight."""

  def __init__(self, place, step, message, names):
    self.place, self.step, self.message = place, step, message
    self.found = dict.fromkeys(names)

  @property
  def is_done(self):
    return None not in self.found.values()


class Island(Program):
  """An island's process."""

  def __init__(self, world, machine, name):
    super().__init__(world, machine, name)
    self.lie, self.outbox = world.lies.get(name), {}
    self.counted, self.open = set(), []
    self.leases = Leases(len(world.names))
    self.params, self.flight = 0, None

  @property
  def membership(self):
    return self.machine.membership

  @property
  def slot(self):
    return self.membership.slots.index(self.name)

  @property
  def there(self):
    return [self.membership.slots.index(n) for n in self.membership.islands]

  def train(self) -> Generator[None, None, str]:
    """The loop of an island; its result says how the island ended."""
    machine = self.machine
    yield from machine.enter()
    if machine.prepares:
      yield from self.sleep(self.world.rng.uniform(0.0, 2.0))
      yield from machine.enter_prepared()
    yield from self.agree()
    stop = STEPS - 4 * (self.lie == 'takes fewer steps')
    while self.step < stop:
      cells = self.leases.next(self.there)
      yield from self.work()
      cell = cells[self.slot]
      before = self.params, [*self.open]
      synced, arrived = yield from self.complete(self.unit, before, cell)
      late = self.world.is_late
      self.leases.complete(
        self.there, synced=synced, late=late, arrived=arrived
      )
      self.reach(self.step + 1)
      if (yield from machine.stops_after(self.step)):
        break
      if machine.admits and self.leases.may_enter:
        yield from machine.admit()
        yield from self.agree()
    yield from self.complete(lambda: machine.leave(True))
    return 'finished'

  def reach(self, step):
    """Notes the number of steps taken."""
    self.step = step
    self.machine.done = messages.Alive(self.membership.generation, step)

  def complete(self, unit, *args):
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
      self.count_alone()
      return False, None
    message = self.params, self.open, self.counted
    if self.world.is_late and len(self.there) > 1:
      if not self.flight:
        self.flight = self.depart(message, 'behind')
        self.open = []
        return True, None
      return False, None
    self.open = []
    self.apply((yield from self.exchange(message)))
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
      found = [*flight.found.values()]
    else:
      found = yield from self.exchange(flight.message)
    self.count_alone()
    self.apply(found)
    self.flight = None
    return False, arrived

  def apply(self, found):
    """Applies an average of the islands' messages."""
    self.params = mix(*(each[0] for each in found))
    self.counted = self.counted.union(*(each[2] for each in found))
    self.count([each[1] for each in found])
    self.world.check.applied(self)

  def count(self, each):
    """Counts examples that islands have read."""
    cells = [cell for cells in each for cell in cells]
    self.world.check.counted(self, cells)
    self.counted = self.counted.union(cells)

  def count_alone(self):
    """Counts this island's examples at once if there is no other."""
    if len(self.there) == 1:
      self.count([self.open])
      self.open = []

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
    return [*flight.found.values()]

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
    world = self.world
    current = self.membership.generation == place.generation
    if not (self.runs and current) or found[name]:
      return
    sender = world.by_address.get(self.membership.islands[name])
    is_cut = world.cut_pairs[self.name, name] > world.now
    reached = sender and not is_cut and sender.is_awake
    if reached and world.rng.random() > 0.05:
      failing.pop(name, None)
      if place.key in sender.outbox:
        dtype, message = sender.outbox[place.key]
        if dtype == place.dtype:
          found[name] = message
          self.machine.acquit(name)
        else:
          self.machine.accuse(place, name, f'{dtype} at {place}')
        self.later(0.0, self.advance)
    elif sender is None or not reached:
      began = failing.setdefault(name, world.now)
      if world.now - began > TIMEOUT:
        self.machine.accuse(place, name)
        self.flush()
    if not found[name]:
      pause = world.rng.uniform(0.05, 0.3)
      self.later(pause, self.fetch, place, name, found, failing)

  def agree(self):
    """Lets the islands continue from the one with the most steps."""
    own = np.array([self.step]).tobytes()
    whole = yield from self.complete(self.vote, 'gather', 'uint8', own)
    steps = np.frombuffer(whole, np.int64)
    best = int(np.argmax(steps))
    donor = self.world.by_address[[*self.membership.islands.values()][best]]
    behind = [
      s for s, n in zip(self.there, steps, strict=True) if n < max(steps)
    ]
    if self.step < donor.step:
      self.params, self.counted, self.open = donor.params, donor.counted, []
      self.flight, self.applied = None, dict(donor.applied)
      self.leases.begin(0, donor.leases.to_json())
      self.reach(donor.step)
    yield from self.complete(self.vote, 'gather', 'uint8', b'read')
    self.leases.lose(behind)


class Islands(World):
  """Islands and their coordinator; see `World` and `Coordinator`."""

  def __init__(self, seed, islands=3, minimum=2, lies=None, grace=None):
    self._grace = grace
    super().__init__(seed, 'abcde'[:islands], minimum, lies)

  def _coordinator(self, number):
    limits = len(self.names), self.minimum, 20.0, self._grace
    return Coordinator(*limits, f'{number}', self.check.note)

  def _program(self, name, number):
    address = f'{name}:{number}'
    join = messages.Join(name, address, {'run': 'x'}, TIMEOUT, welcomes=True)
    return Island(self, Member(join, 'host:1'), name)
