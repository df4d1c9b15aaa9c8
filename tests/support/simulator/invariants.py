"""Invariants of a simulated world, which hold under all faults."""

import re

POINT = 'the coordinator'


class Broken(AssertionError):
  """An invariant does not hold."""


class Invariants:
  """Checks a world after each event that could break an invariant.

  Attributes:
    suspects: members that were disturbed or lie, or `POINT`. Only these may be
      ended, and lines about an end must name one of them.
  """

  def __init__(self, world):
    self.world, self.suspects = world, {*world.lies}
    self._size, self._slandered = len(world.names), 0

  def note(self, kind, island, words, generation=0, present=()):
    """Checks a coordinator's note: ended islands must have been disturbed."""
    del generation
    before, self._size = self._size, len(present) or self._size
    if kind != 'ended' or island in self.suspects:
      return
    if not self._may_be_blamed(island, words, before):
      raise Broken(f'{island} {words}, though nothing was done to it')

  def _may_be_blamed(self, island, words, size):
    """A single accuser is believed once; of two islands, both end."""
    lies = self.world.lies
    if POINT in self.suspects and 'coordinator' in words:
      return True
    if words == 'is at another place' and lies and size <= 2:
      return True
    if 'calls messages wrong' in lies.values() and words.startswith('sends'):
      self.suspects.add(island)
      self._slandered += 1
      return self._slandered == 1
    too_few = len({*self.world.names} - self.suspects) < self.world.minimum
    return words == 'waits no longer' and (too_few or POINT in self.suspects)

  def applied(self, island):
    """Checks an average that an island has applied."""
    membership = island.machine.membership
    own = island.applied[island.step] = (*membership.islands,), island.params
    for other in self.world.every:
      found = other.applied.get(island.step)
      if found not in (None, own) and other.is_awake and not other.result:
        generation = other.machine.membership.generation
        if generation == membership.generation and not other.machine.error:
          raise Broken(
            f'step {island.step}: {island.name} has applied {own}, '
            f'{other.name} {found}'
          )

  def counted(self, island, cells):
    """Checks that examples which an island counts have not counted before."""
    if len({*cells}) < len(cells) or island.counted.intersection(cells):
      raise Broken(f'{island.name}: an example counts twice')

  def ended(self, program):
    """Checks the error of an ended member, which must name a culprit."""
    name, line, world = program.name, program.result, self.world
    replaced = f'island {name} is replaced|another island has joined as {name}'
    if re.search(replaced, line) and world.members[name] is program:
      raise Broken(f'{name}: {line!r}, but no later process of it has joined')
    if name in self.suspects:
      return
    lists = re.findall(r'(?:island|process|processes) (\w+(?:, \w+)*)', line)
    named = {*', '.join(lists).split(', ')} - {name}
    named |= set(re.findall(r'\b(\w)\b(?:, \w)* (?:is|are) at', line))
    if joined := re.search(r'have joined within .*: ([\w, ]*)', line):
      named |= {*world.names}.difference(joined[1].split(', '))
    if 'coordinator' in line:
      named.add(POINT)
    if not named & self.suspects:
      raise Broken(f'{name}: {line!r} names none of {self.suspects}')

  def finish(self, seconds=400.0):
    """Heals the world; then no member may wait any longer."""
    world = self.world
    world.heal()
    end = world.now + seconds
    while world.now < end and any(program.runs for program in world.every):
      if not world.advance():
        break
    for program in (program for program in world.every if program.runs):
      raise Broken(f'{program.name} waits for ever, at step {program.step}')
    # A new coordinator cannot hear of a run that all its islands have left.
    done = [
      program
      for program in world.every
      if program.result == 'finished' and program.last_point is world.last_point
    ]
    if len(steps := {program.step for program in done}) > 1:
      raise Broken(f'all stop, but after different steps: {steps}')
    for step in {step for program in done for step in program.applied}:
      found = {p.applied[step] for p in done if step in p.applied}
      if len(found) > 1:
        raise Broken(f'step {step}: the replicas differ: {found}')
    honest = {*world.names} - self.suspects
    of_two = world.lies and self._size <= 2  # With two, either may be odd.
    if len(honest) < world.minimum or of_two or POINT in self.suspects:
      return
    for name in honest:
      if (result := world.members[name].result) != 'finished':
        raise Broken(f'{name} {result}, though nothing was done to it')
