"""What a method sends, by arithmetic: collectives, and the bytes they cost.

Every part of a method names the collectives that it issues, from the shapes of
the arrays alone; nothing else computes traffic.

References:
  Patarasuk and Yuan, `Bandwidth optimal all-reduce algorithms for clusters of
  workstations`, JPDC 2009 (the ring).
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from selsync_jax.sync import flat


class Kind(NamedTuple):
  """The cost of one kind of collective among N workers in a ring."""

  share: Callable[[int], float]  # Bytes that one sends for each of the message.
  rounds: Callable[[int], int]  # Messages that follow one another.


# In this order, the message is the vector that is reduced; one worker's
# contribution to the gathered result; the vector that is scattered; what one
# worker sends to all together; what it sends to its partner; what the root
# sends.
KINDS = {
  'all_reduce': Kind(lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1)),
  'all_gather': Kind(lambda n: n - 1, lambda n: n - 1),
  'reduce_scatter': Kind(lambda n: (n - 1) / n, lambda n: n - 1),
  'all_to_all': Kind(lambda n: (n - 1) / n, lambda n: n - 1),
  'exchange': Kind(lambda n: float(n > 1), lambda n: int(n > 1)),
  'broadcast': Kind(lambda n: (n - 1) / n, lambda n: n - 1),
}


class Collective(NamedTuple):
  """One collective that a part of a method issues.

  Attributes:
    kind: a name in `KINDS`.
    nbytes: bytes of the message, see `KINDS`.
    at: 'step' or 'sync': issued at every step, or at a synchronization.
    rate: how often it is issued on average, per step or per synchronization.
    scale: the metric of the part that multiplies `nbytes` where the length of
      the message depends on the values; 1 is the expected length.
    late: after how many steps its result is needed; it travels while the
      workers take them. It is infinite for the next synchronization.
    senders: the share of the workers that send; the others wait for them.
  """

  kind: str
  nbytes: float
  at: str = 'sync'
  rate: float = 1.0
  scale: str | None = None
  late: float = 0
  senders: float = 1.0

  def sent(self, workers: int) -> float:
    """Returns the mean bytes of a worker, per step or synchronization."""
    nbytes = self.nbytes * self.rate * self.senders
    return KINDS[self.kind].share(workers) * nbytes


Sends = Callable[[Any, int], tuple[Collective, ...]]
"""`sends(tree, workers)`: what a part sends, from the arrays that it works on
(or their shapes) and the number of workers."""


def sends_nothing(tree: Any, workers: int) -> tuple[Collective, ...]:
  """Sends nothing."""
  return ()


def sends_all(tree: Any, workers: int) -> tuple[Collective, ...]:
  """Sends one all-reduce of the floating-point leaves at a synchronization."""
  return (Collective('all_reduce', summed_nbytes(tree)),)


class Traffic(NamedTuple):
  """Bytes that one worker sends."""

  step: float  # At every step.
  sync: float  # At a synchronization, in addition.
  bsp: float  # At every step under BSP.
  injected: float = 0.0  # At every step for examples, in addition.
  # Of these, where a metric multiplies them: at step or sync, metric, bytes.
  scaled: tuple[tuple[str, str, float], ...] = ()


def nbytes(tree: Any) -> int:
  """Returns the bytes of a tree's floating-point arrays or their shapes.

  Counters do not travel: `consensus` leaves them as they are.
  """
  return sum(leaf.size * leaf.dtype.itemsize for leaf in flat.floats(tree))


def summed_nbytes(tree: Any) -> int:
  """Returns the bytes of these arrays in an all-reduce: 4 for an element of 2.

  `consensus` forms the mean in float32 at least.
  """
  return sum(
    leaf.size * max(leaf.dtype.itemsize, 4) for leaf in flat.floats(tree)
  )


def sent(collectives: Iterable[Collective], at: str, workers: int) -> float:
  """Returns the bytes that a worker sends in the collectives issued `at`."""
  return sum(c.sent(workers) for c in collectives if c.at == at)


def traffic(
  collectives: Iterable[Collective], params: Any, workers: int
) -> Traffic:
  """Returns the bytes that each of N workers sends in a method's collectives.

  `params` are one worker's parameters, or their shapes, which BSP averages.
  """
  collectives = tuple(collectives)
  return Traffic(
    step=sent(collectives, 'step', workers),
    sync=sent(collectives, 'sync', workers),
    bsp=Collective('all_reduce', summed_nbytes(params)).sent(workers),
    scaled=tuple(
      (c.at, c.scale, c.sent(workers)) for c in collectives if c.scale
    ),
  )
