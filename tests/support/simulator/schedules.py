"""Schedules of faults, by seed."""

import random

from tests.support.simulator.invariants import POINT
from tests.support.simulator.islands import Islands, LIES
from tests.support.simulator.processes import Processes


def play(seed):
  """Runs one schedule; raises `Broken` if an invariant does not hold."""
  rng = random.Random(seed)
  if seed % 5 == 4:
    world = Processes(seed, rng.choice([2, 3, 4]))
    kinds = ['kill', 'freeze', 'cut', 'busy', 'reset', 'fail', *3 * ['ask']]
  else:
    world, kinds = _islands(seed, rng), [*FAULTS]
  world.run(rng.choice([0.0, rng.uniform(0.0, 3.0)]))
  for _ in range(rng.randint(0, 5)):
    disturb(world, rng, rng.choice(kinds), rng.choice(world.names))
    world.run(rng.choice([0.0, 0.01, rng.uniform(0.0, 4.0)]))
  world.check.finish()
  return world


def _islands(seed, rng):
  islands = rng.choice([2, 3, 3, 4, 5])
  minimum = rng.randint(1, islands)
  lies = {}
  if rng.random() < 0.25 and islands > 2:
    lies = {rng.choice('abcde'[:islands]): rng.choice(LIES)}
    minimum = rng.randint(1, islands // 2)
  return Islands(seed, islands, minimum, lies, rng.choice([None, None, 2.0]))


def disturb(world, rng, kind, name):
  """Does something to a member, or to the coordinator."""
  world.check.suspects.add(POINT if POINT in kind else name)
  FAULTS[kind](world, rng, world.members[name])


def _kill(world, rng, program):
  program.kill()
  if rng.random() < 0.7:
    world.later(rng.uniform(0.0, 5.0), None, world.restart, program.name)


def _kill_point(world, rng, program):
  del program
  if world.point.is_alive:
    world.point.kill()
  world.later(rng.uniform(0.0, 2.0), None, world.start_point)


def _cut(world, rng, program):
  """Cuts a member off from the coordinator, one way or both."""
  ways = rng.choice([['up'], ['down'], ['up', 'down']])
  until = world.now + rng.uniform(0.1, 6.0)
  for cut in map(world.cut.get, ways):
    cut[program.name] = max(cut[program.name], until)


def _cut_pair(world, rng, program):
  """Cuts a connection between two islands, one way or both."""
  others = [other for other in world.names if other != program.name]
  pair = program.name, rng.choice(others)
  world.check.suspects.update(pair)
  for way in rng.choice([[pair], [pair, pair[::-1]]]):
    world.cut_pairs[way] = world.now + rng.uniform(0.1, 12.0)


def _reset(world, rng, program):
  """Cuts a member's connection, perhaps again and again."""
  program.shaky = world.now + rng.uniform(-1.0, 2.0)
  program.reset()


def _busy(world, rng, program):
  """Makes a step take long, as if it compiled."""
  program.busy = world.now + rng.uniform(1.0, 8.0)


def _ask(world, rng, program):
  """Asks a member to stop."""
  del world, rng
  if program.runs:
    program.machine.ask()
    program.flush()


def _fail(world, rng, program):
  """Ends a member with an error, or by a signal."""
  del world
  if program.runs:
    program.machine.fail('', rng.choice([1, 75]))
    program.end('failed')


FAULTS = {
  'kill': _kill,
  'freeze': lambda _, rng, program: program.freeze(rng.uniform(0.1, 8.0)),
  'kill the coordinator': _kill_point,
  'freeze the coordinator': lambda world, rng, _: world.point.freeze(
    rng.uniform(0.1, 6.0)
  ),
  'cut': _cut,
  'cut a pair': _cut_pair,
  'busy': _busy,
  'reset': _reset,
  'ask': _ask,
  'fail': _fail,
}
