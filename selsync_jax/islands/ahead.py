"""Steps that begin while the vote of the step before is on its way.

A vote takes a round trip, and mostly no island asks for an average. So an
island without a reason of its own guesses that no other has one, completes the
step, and begins the next one: it computes the gradient of the next batch until
it needs the other islands again. Then the answer must be there. If some island
has asked, the next step is thrown away, and the step is completed again from
the answer.

The guess never leaves the island. Messages, logs and checkpoints follow from
the answer, so the result has the same bits as if the island had waited, and
each island may decide for itself whether to guess. During a vote, and during an
average that follows it, the island keeps one more copy of its state, with a
gradient.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures
import functools
import time
from typing import Any, NamedTuple

import numpy as np

from selsync_jax.data.pace import Watch
from selsync_jax.data.protocol import Batch
from selsync_jax.devices.mappers import Function
from selsync_jax.islands.mapper import IslandMapper
from selsync_jax.islands.peers import About, Peers
from selsync_jax.islands.program import Begun, complete, cut
from selsync_jax.sync.network import pays_to_guess

KEPT = 100
"""The number of votes that count for the decision to guess."""


class WrongGuess(Exception):
  """The answer to a vote is another one than the guess."""


class Odds:
  """Tells from measurements whether to guess, see `pays_to_guess`.

  The shortest of the last round trips counts, because longer ones have waited
  for a slower island, too.
  """

  def __init__(self) -> None:
    self._wrong: deque[bool] = deque(maxlen=KEPT)
    self._trips: deque[float] = deque(maxlen=KEPT)
    self._step, self._waited, self._before = Watch(), 0.0, time.perf_counter()

  def note(self, is_wrong: bool) -> None:
    """Notes whether a guess was wrong, or would have been."""
    self._wrong.append(is_wrong)

  def trip(self, vote: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns the answer to a vote, and measures its round trip."""
    began = time.perf_counter()
    answer = vote()
    self._trips.append(time.perf_counter() - began)
    return answer

  def wait(self, answer: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns an answer, and measures how long the step waits for it."""
    began = time.perf_counter()
    try:
      return answer()
    finally:
      self._waited += time.perf_counter() - began

  def complete(self) -> None:
    """Notes that a step is complete, with everything since the one before."""
    now = time.perf_counter()
    self._step.add(now - self._before - self._waited)
    self._before, self._waited = now, 0.0

  @property
  def are_good(self) -> bool:
    """Whether to guess."""
    if not (self._trips and self._step.median):
      return False
    # As if one more guess had been wrong: few votes say little.
    wrong = (1 + sum(self._wrong)) / (1 + len(self._wrong))
    return pays_to_guess(wrong, self._step.median, min(self._trips))


class Guesses(Peers):
  """The islands, seen in a step that need not wait for the answer to a vote.

  At most one vote is on its way. Its answer is awaited before the next message.

  Attributes:
    dares: whether this step may guess.
    flight: the vote on its way, if any.
  """

  def __init__(
    self, peers: Peers, odds: Odds, thread: futures.ThreadPoolExecutor
  ):
    self._peers, self._odds, self._thread = peers, odds, thread
    self._answers: list[np.ndarray] = []  # To the votes of this step.
    self._given = 0  # How many of them the step has, since it was repeated.
    self.dares = odds.are_good
    self.flight: futures.Future[np.ndarray] | None = None

  view = property(lambda self: self._peers.view)

  def channel(self, name: str) -> Peers | None:
    return self._peers.channel(name)

  def fold(self, operation: str, message: np.ndarray) -> np.ndarray:
    if self._given == len(self._answers):
      self.settle()
      self._answers.append(self._answer(operation, message))
    self._given += 1
    return self._answers[self._given - 1]

  def _answer(self, operation: str, message: np.ndarray) -> np.ndarray:
    """Returns the answer to a vote, or a guess: that no island asks."""
    vote = functools.partial(self._peers.fold, operation, message)
    ask = functools.partial(self._odds.trip, vote)
    if operation == 'pmin' or message.any():
      return self._odds.wait(ask)
    if self.dares:
      self.flight = self._thread.submit(ask)
      return message
    answer = self._odds.wait(ask)
    self._odds.note(is_wrong=bool(answer.any()))
    return answer

  def settle(self) -> None:
    """Waits for the answer to the vote on its way.

    Raises:
      WrongGuess: if the step must be repeated.
    """
    if not self.flight:
      return
    answer, self.flight = self._odds.wait(self.flight.result), None
    is_wrong = answer.tobytes() != self._answers[-1].tobytes()
    self._odds.note(is_wrong)
    self._peers.guessed(not is_wrong)
    if is_wrong:
      self._answers[-1], self._given = answer, 0
      raise WrongGuess

  def _settled(self) -> Peers:
    """Returns the islands for messages that nothing is repeated after."""
    self.settle()
    self.dares = False
    return self._peers

  def exchange(
    self, messages: Sequence[np.ndarray], about: About | None = None
  ) -> list[np.ndarray]:
    return self._settled().exchange(messages, about)

  def share(self, message: np.ndarray) -> list[np.ndarray]:
    return self._settled().share(message)

  def arrive(self, compute: Callable[[Peers], Any]) -> Any:
    return self._settled().arrive(compute)


class _Next(NamedTuple):
  """A step that has begun, and what it has begun from."""

  begun: Begun
  names: Sequence[str]
  state: Any
  batch: Batch


class Ahead:
  """A training step `(state, batch) -> (state, metrics)` that looks ahead.

  Args:
    mapper: the mapper of this island, which has a single process.
    fn: the step of one worker.
    upcoming: returns the batch of the next step, if it is known.
  """

  def __init__(
    self,
    mapper: IslandMapper,
    fn: Function,
    upcoming: Callable[[], Batch | None],
  ):
    self._mapper, self._cut = mapper, cut(fn, mapper.form)
    self._upcoming, self._odds = upcoming, Odds()
    self._thread = futures.ThreadPoolExecutor(1, 'vote')
    self._next: _Next | None = None

  def __call__(self, state: Any, batch: Batch) -> tuple[Any, Any]:
    made = complete(self._mapper.peers, self._take, state, batch)
    self._odds.complete()
    return made

  def _take(self, peers: Peers, state: Any, batch: Batch) -> tuple[Any, Any]:
    begun = self._begun(peers, state, batch)
    guesses = Guesses(peers, self._odds, self._thread)
    while True:
      try:
        rest = begun.copy() if guesses.dares else begun
        made = self._mapper.placed(rest.finish(guesses))
        if guesses.flight:
          self._look_ahead(peers, made[0])
          guesses.settle()
        return made
      except WrongGuess:
        self._next = None

  def _begun(self, peers: Peers, state: Any, batch: Batch) -> Begun:
    """Returns this step until it needs the others; it may be there already."""
    ahead, self._next = self._next, None
    is_ahead = ahead and ahead.state is state and ahead.batch is batch
    if ahead and is_ahead and ahead.names == peers.names:
      return ahead.begun
    return self._cut.begin(peers, state, batch)

  def _look_ahead(self, peers: Peers, state: Any) -> None:
    """Begins the next step, from the state after this one."""
    if (batch := self._upcoming()) is not None:
      begun = self._cut.begin(peers, state, batch)
      self._next = _Next(begun, peers.names, state, batch)
