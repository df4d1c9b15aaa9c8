"""The protocol of islands under schedules of faults, on a virtual clock."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, RuleBasedStateMachine
import pytest

from selsync_jax.cluster.protocol import member, messages, run
from tests.support import schedules


@pytest.mark.parametrize('first', range(0, 200, 50))
def test_a_schedule_breaks_nothing(first):
  for seed in range(first, first + 50):
    schedules.play(seed)


def test_a_coordinator_may_end_again_before_all_have_found_it():
  world = schedules.World(0)
  world.run(1.0)
  world.cut('c', [world.cut_up, world.cut_down], 1.5)
  for _ in range(2):
    world.kill_point()
    world.start_point()
    world.run(1.0)
  world.finish()
  words = 'has found the coordinator again'
  found = [line[2] for line in world.lines if line[3] == words]
  assert sorted(found) == [*'aabbc']
  assert {each.result for each in world.every} == {'finished'}


NAMES = st.sampled_from('abc')
SECONDS = st.floats(0.0, 6.0)


class Islands(RuleBasedStateMachine):
  """Three islands, of which two must be left, disturbed at any moment."""

  def __init__(self):
    super().__init__()
    self.world = schedules.World(0)
    self.world.run(0.5)

  @rule(seconds=SECONDS)
  def goes_on(self, seconds):
    self.world.run(seconds)

  @rule(events=st.integers(1, 40))
  def takes_events(self, events):
    for _ in range(events):
      self.world.advance()

  @rule(name=NAMES)
  def kill(self, name):
    self.world.kill(name)

  @rule(name=NAMES)
  def restart(self, name):
    self.world.restart(name)

  @rule(name=NAMES, seconds=SECONDS)
  def freeze(self, name, seconds):
    self.world.freeze(self.world.members[name], seconds)

  @rule(name=NAMES, up=st.booleans(), down=st.booleans(), seconds=SECONDS)
  def cut(self, name, up, down, seconds):
    ways = [self.world.cut_up] * up + [self.world.cut_down] * down
    self.world.cut(name, ways, seconds)

  @rule(one=NAMES, other=NAMES, seconds=SECONDS)
  def cut_pair(self, one, other, seconds):
    self.world.cut_pair(one, other, seconds)

  @rule(name=NAMES)
  def reset(self, name):
    self.world.reset(name)

  @rule(name=NAMES)
  def ask(self, name):
    self.world.ask(name)

  @rule()
  def kill_coordinator(self):
    self.world.kill_point()

  @rule()
  def restart_coordinator(self):
    self.world.start_point()

  @rule(seconds=SECONDS)
  def freeze_coordinator(self, seconds):
    self.world.freeze(self.world.point, seconds)

  def teardown(self):
    self.world.finish()


Islands.TestCase.settings = settings(
  max_examples=25, stateful_step_count=12, deadline=None
)
TestIslands = Islands.TestCase


def checks_error_alone(self):
  if self.error:
    raise self.error


# For each missing part: a seed near the first that finds it, and the change.
MUTANTS = {
  'what others have heard is not passed on': (30, run, 'missed', lambda *_: []),
  'all places fit': (120, messages.Place, 'fits', lambda *_: True),
  'accusations are not judged': (10, run.Run, '_judge', lambda *_: None),
  'no island regroups': (0, member.Member, 'check', checks_error_alone),
}


@pytest.mark.parametrize('name', MUTANTS)
def test_a_protocol_without_a_check_is_found(name, monkeypatch):
  first, *change = MUTANTS[name]
  monkeypatch.setattr(*change)

  def play():
    for seed in range(first, first + 500):
      schedules.play(seed)

  with pytest.raises(schedules.Broken):
    play()
