"""The protocol of islands under schedules of faults, on a virtual clock."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, RuleBasedStateMachine
import pytest

from selsync_jax.cluster.protocol import coordinator, member, messages, run
from tests.support.simulator import schedules
from tests.support.simulator.invariants import Broken, POINT
from tests.support.simulator.islands import Islands


@pytest.mark.parametrize('first', range(0, 200, 50))
def test_a_schedule_breaks_nothing(first):
  for seed in range(first, first + 50):
    schedules.play(seed)


def test_a_coordinator_may_end_again_before_all_have_found_it():
  world = Islands(0)
  world.run(1.0)
  for cut in world.cut.values():
    cut['c'] = world.now + 1.5
  world.check.suspects |= {'c', POINT}
  back, note = [], world.check.note

  def keep(kind, name, words, *more):
    if words == 'has found the coordinator again':
      back.append(name)
    note(kind, name, words, *more)

  world.check.note = keep
  for _ in range(2):
    world.point.kill()
    world.start_point()
    world.run(1.0)
  world.check.finish()
  assert sorted(back) == [*'aabbc']
  assert {each.result for each in world.every} == {'finished'}


NAMES = st.sampled_from('abc')


class Faults(RuleBasedStateMachine):
  """Three islands, of which two must be left, disturbed at any moment."""

  def __init__(self):
    super().__init__()
    self.world = Islands(0)
    self.world.run(0.5)

  @rule(seconds=st.floats(0.0, 6.0))
  def run_on(self, seconds):
    self.world.run(seconds)

  @rule(events=st.integers(1, 40))
  def take_events(self, events):
    for _ in range(events):
      self.world.advance()

  @rule(
    rng=st.randoms(use_true_random=False),
    kind=st.sampled_from([*schedules.FAULTS]),
    name=NAMES,
  )
  def disturb(self, rng, kind, name):
    schedules.disturb(self.world, rng, kind, name)

  @rule(name=NAMES)
  def restart(self, name):
    self.world.restart(name)

  @rule()
  def restart_coordinator(self):
    self.world.start_point()

  def teardown(self):
    self.world.check.finish()


Faults.TestCase.settings = settings(
  max_examples=25, stateful_step_count=12, deadline=None
)
TestFaults = Faults.TestCase


def checks_error_alone(self):
  if self.error:
    raise self.error


def settles_a_step_that_some_have_reached(self):
  reached = self._reached
  if reached is not None and all(s.name in reached for s in self.members):
    self._say(self.members, messages.Last(max(reached.values())))


def only_checks_for_silence(self, now):
  if now - self._heard_at > self.join.timeout and not self.error:
    self._miss(self.join.timeout)


# For each missing part: a seed near the first that finds it, and the change.
MUTANTS = {
  'what others have heard is not passed on': (
    *(540, run, 'missed', lambda *_: []),
  ),
  'all places fit': (140, messages.Place, 'fits', lambda *_: True),
  'accusations are not judged': (20, run.Run, '_judge', lambda *_: None),
  'no island regroups': (0, member.Member, 'check', checks_error_alone),
  'an earlier connection counts as the newest': (
    *(90, coordinator.Coordinator, '_check_newest', lambda *_: None),
  ),
  'who waits is silent': (0, member.Member, 'tick', only_checks_for_silence),
  'all stop after a step that some have reached': (
    *(680, run.Run, '_settle_last', settles_a_step_that_some_have_reached),
  ),
}


@pytest.mark.parametrize('name', MUTANTS)
def test_a_protocol_without_a_check_is_found(name, monkeypatch):
  first, *change = MUTANTS[name]
  monkeypatch.setattr(*change)

  def play():
    for seed in range(first, first + 500):
      schedules.play(seed)

  with pytest.raises(Broken):
    play()
