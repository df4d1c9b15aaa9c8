"""Measures the network between islands, over the connections that they use."""

from collections.abc import Callable, Sequence
import functools
import itertools
import math
import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from selsync_jax.islands import joining
from selsync_jax.islands.board import Board
from selsync_jax.islands.exchange import FLOWS
from selsync_jax.islands.flight import PIECE
from selsync_jax.islands.peers import SMALL
from selsync_jax.islands.program import complete, cut
from selsync_jax.sync.averagers import Averager
from selsync_jax.sync.delay import Delayed
from selsync_jax.sync.network import Network
from selsync_jax.sync.traffic import Collective

FETCHES, LONG = 31, 3.0
"""The most fetches of a message whose times are measured, and the seconds after
which fewer are enough."""

LEAST, MOST = 1 << 16, 2 * PIECE
"""Limits of the message for a bandwidth, in bytes."""

SAMPLE = 1 << 18
"""Parameters of which an average is computed, to time it."""

_SHARED = 'all_reduce', 'all_gather'
"""Collectives whose small messages pass through the coordinator."""


class Links(NamedTuple):
  """The links of N islands; each direction has its own figures.

  Attributes:
    names: the islands' names.
    bandwidth: (N, N) float64, bits per second from an island (row) to another
      one (column); NaN on the diagonal.
    round_trip: the same, in seconds from a request for a small message until
      the message has arrived.
    slowest: bits per second in both directions at once, of the slowest pair;
      infinite if there is none.
  """

  names: Sequence[str]
  bandwidth: np.ndarray
  round_trip: np.ndarray
  slowest: float

  def network(self, workers: int) -> 'IslandNetwork':
    """Returns a network of this many islands, whose links are the worst one."""
    trip = float(np.nanmax(self.round_trip, initial=0.0))
    return IslandNetwork(workers, self.slowest, trip / 2)


class IslandNetwork(Network):
  """N islands, which fetch messages from several others at a time.

  A fetch is two consecutive messages: a request, and the answer to it.
  """

  @property
  def agreement(self) -> float:
    return self.round_trip

  def rounds(self, collective: Collective) -> int:
    others = self.workers - 1
    if collective.nbytes <= SMALL and collective.kind in _SHARED:
      return 2 * min(1, others)
    exchanges = math.ceil(super().rounds(collective) / max(1, others))
    return 2 * exchanges * math.ceil(others / FLOWS)


def work(averager: Averager, nbytes: float) -> float:
  """Returns the seconds in which an island computes an average by itself.

  Measures an average of a vector, by one island alone, and assumes that the
  time is proportional to the bytes. It is 0 for an averager that needs more
  islands.

  Args:
    averager: see `Averager`.
    nbytes: bytes of the parameters.
  """
  vector = jnp.zeros(SAMPLE, jnp.float32)
  tree = {'params': {'w': vector}, 'model_state': {}}
  state = jax.jit(averager.init)(tree)
  run, args = cut(averager.average), (tree, state)
  if isinstance(averager, Delayed):
    run, args = cut(averager.travel), averager.message(state)
  alone = Board(1).peers(0)

  def average():
    jax.block_until_ready(run(alone, *args))

  try:
    average()  # This compiles.
  except ValueError:
    return 0.0
  seconds = statistics.median(_seconds(average) for _ in range(FETCHES))
  return seconds * nbytes / vector.nbytes


def probe(
  invitation: str, name: str, nbytes: int, timeout: float = 60.0
) -> Links:
  """Joins the other probes, and measures all links between them.

  If a probe ends, and the coordinator lets the others continue, they measure
  the links between them again.

  Args:
    invitation: line that `selsync meet` prints.
    name: name of this island, unique among the probes.
    nbytes: bytes of the parameters, equal on all islands.
    timeout: seconds for which a probe may be silent.

  Raises:
    RunError: if not enough probes join, or if one of them ends.
  """
  invited = joining.Invitation.parse(invitation)
  with joining.join(invited, name, described(nbytes), timeout) as peers:
    return complete(peers, measure, nbytes)


def described(nbytes: int) -> dict[str, Any]:
  """Returns the description of a probe, for `join`."""
  return {'command': 'selsync plan --probe', 'bytes of parameters': nbytes}


def measure(peers: Any, nbytes: int) -> Links:
  """Measures all links; all islands call this together.

  The pairs take turns. The islands of a pair begin to fetch from each other at
  the same time, as in an average, and about as much: an island's share of the
  parameters. An average waits for both, so the later one counts each time.

  Args:
    peers: the islands; `FlightPeers`.
    nbytes: bytes of the parameters.

  Raises:
    Regrouped: if an island has ended, and the others may continue.
    RunError: if an island has ended.
  """
  share = min(max(nbytes // peers.size, LEAST), MOST)

  def bandwidth(trip, whole):
    return 8 * share / np.maximum(whole - trip, whole / 10)

  trip, later_trip = _seconds_of_pairs(peers, 1)
  whole, later = _seconds_of_pairs(peers, share)
  found = np.stack(peers.share(np.stack([trip, bandwidth(trip, whole)])), -1)
  slowest = bandwidth(later_trip, later).min(initial=np.inf)
  # By sender, receiver.
  return Links(peers.names, found[1], found[0], float(slowest))


def _seconds_of_pairs(peers: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the median seconds in which a message of this size arrives.

  The first are by sender, for messages to this island; the second by pair, for
  the later one of its two messages.
  """
  found, by_pair = np.full(peers.size, np.nan), []
  noise = np.random.default_rng(0).bytes(size)  # A VPN may compress.
  fetch = peers.serve(np.frombuffer(noise, np.uint8))
  for pair in itertools.combinations(range(peers.size), 2):
    other, own, later = sum(pair) - peers.index, [], []
    while len(later) < FETCHES and (len(later) < 3 or sum(later) < LONG):
      if peers.index in pair:
        own.append(_seconds(functools.partial(fetch, other)))
      last = peers.fold('pmax', np.array(own[-1] if own else 0.0))
      later.append(float(last))
    by_pair.append(statistics.median(later[1:]))  # The first connects.
    if own:
      found[other] = statistics.median(own[1:])
  return found, np.array(by_pair)


def _seconds(run: Callable[[], Any]) -> float:
  began = time.perf_counter()
  run()
  return time.perf_counter() - began
