"""Computes the time that a collective takes on a network.

The workers form a ring: a collective takes `KINDS[kind].rounds` consecutive
messages, and each pays the latency of a link.
"""

import re
from typing import NamedTuple

from selsync_jax.config import lookup
from selsync_jax.sync.traffic import Collective, KINDS

_NUMBER = r'\d+\.?\d*|\.\d+'
_BITS = {'k': 1e3, 'm': 1e6, 'g': 1e9}
_UNITS = 'kbit, Mbit, Gbit, kbps, Mbps, Gbps (bits), kB/s, MB/s, GB/s (bytes)'
_SECONDS = {'us': 1e-6, 'ms': 1e-3, 's': 1.0}


class Network(NamedTuple):
  """N workers connected by identical links."""

  workers: int  # N, one per host.
  bandwidth: float  # Bits per second of a host's link, in each direction.
  latency: float  # Seconds of delay of a message from one host to the next.

  def seconds(self, collective: Collective) -> float:
    """Returns a collective's seconds, per step or synchronization."""
    rounds = self.rounds(collective) * collective.rate
    bits = 8 * collective._replace(senders=1).sent(self.workers)
    return bits / self.bandwidth + rounds * self.latency

  @property
  def round_trip(self) -> float:
    """Seconds from a request until the answer to it."""
    return 2 * self.latency

  @property
  def agreement(self) -> float:
    """Seconds in which workers agree that all have an average."""
    return 0.0

  def rounds(self, collective: Collective) -> int:
    """Returns the number of consecutive messages, each with a latency."""
    return KINDS[collective.kind].rounds(self.workers)


def pays_to_guess(wrong: float, step: float, trip: float) -> bool:
  """Returns whether guessing the answer to a vote takes less time than waiting.

  A wrong guess costs the step after it, and waiting costs the vote.

  Args:
    wrong: share of the guesses that are wrong.
    step: seconds of a step.
    trip: seconds of a vote.
  """
  return wrong * step < trip


def bandwidth(text: str) -> float:
  """Converts `200Mbit`, `1Gbps` or `1GB/s`, for example, to bits per second.

  Unlike in tc(8), `bps` means bits per second. Case matters only for the B of
  `B/s` and `Bps`, which means bytes. Raises `ValueError` if the text is not a
  number above 0 and a unit.
  """
  rate = rf'({_NUMBER}) ?([kmg])(bit|bit/s|bps|b/s)'
  parsed = re.fullmatch(rate, text.lower())
  if not parsed:
    raise ValueError(f'must be a number and one of {_UNITS}, got {text!r}')
  value = float(parsed[1]) * _BITS[parsed[2]]
  if not value:
    raise ValueError(f'must be above 0, got {text!r}')
  return 8 * value if text.endswith(('B/s', 'Bps')) else value


def latency(text: str) -> float:
  """Converts a latency such as `50us` to seconds, else a `ValueError`."""
  parsed = re.fullmatch(rf'({_NUMBER}) ?([a-z]+)', text)
  if not parsed:
    raise ValueError(
      f'must be a number and one of {", ".join(_SECONDS)}, got {text!r}'
    )
  return float(parsed[1]) * lookup(_SECONDS, parsed[2])
