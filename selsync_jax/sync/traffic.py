"""What a method sends, by arithmetic: collectives, and the bytes they cost.

Every part of a method names the collectives that it issues, from the shapes of
the arrays alone. The ledger, the planner and the conformance suite read that
list; nothing else computes traffic.

References:
  Patarasuk and Yuan, `Bandwidth optimal all-reduce algorithms for clusters of
  workstations`, JPDC 2009 (the ring).
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from selsync_jax.sync import flat


class Kind(NamedTuple):
  """The cost of one kind of collective among N workers in a ring.

  Attributes:
    share: `share(N)`, bytes that a worker sends for each byte of the message.
    rounds: `rounds(N)`, messages that follow one another.
  """

  share: Callable[[int], float]
  rounds: Callable[[int], int]


# The message is: the vector that is reduced; what each worker contributes to
# the gathered result; the vector that is scattered; what a worker has for all
# workers together; what one worker sends its partner; what the root sends.
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
    rate: how often on average, per step or per synchronization.
  """

  kind: str
  nbytes: float
  at: str = 'sync'
  rate: float = 1.0

  def sent(self, workers: int) -> float:
    """Bytes that each of N workers sends, per step or synchronization."""
    return KINDS[self.kind].share(workers) * (self.nbytes * self.rate)


Sends = Callable[[Any, int], tuple[Collective, ...]]
"""`sends(tree, workers)`: what a part sends, from the arrays that it works on
(or their shapes) and the number of workers."""


def sends_nothing(tree: Any, workers: int) -> tuple[Collective, ...]:
  """The `sends` of a part that does not communicate."""
  del tree, workers
  return ()


def sends_all(tree: Any, workers: int) -> tuple[Collective, ...]:
  """One all-reduce of the floating-point leaves at a synchronization."""
  del workers
  return (Collective('all_reduce', nbytes(tree)),)


class Traffic(NamedTuple):
  """Bytes that one worker sends.

  Attributes:
    step: at every step.
    sync: at a synchronization, in addition.
    bsp: at every step under BSP.
    injected: of examples, at every step, in addition.
  """

  step: float
  sync: float
  bsp: float
  injected: float = 0.0


def nbytes(tree: Any) -> int:
  """Bytes of the floating-point arrays of a tree, or of their shapes.

  Counters do not travel: `consensus` leaves them as they are.
  """
  return sum(leaf.size * leaf.dtype.itemsize for leaf in flat.floats(tree))


def sent(collectives: Iterable[Collective], at: str, workers: int) -> float:
  """Bytes that a worker sends in those of the collectives that `at` issues."""
  return sum(c.sent(workers) for c in collectives if c.at == at)


def traffic(
  collectives: Iterable[Collective], params: Any, workers: int
) -> Traffic:
  """What each of N workers sends.

  Args:
    collectives: of the whole method.
    params: one worker's parameters (or their shapes), which BSP averages.
    workers: N.
  """
  collectives = tuple(collectives)
  return Traffic(
    step=sent(collectives, 'step', workers),
    sync=sent(collectives, 'sync', workers),
    bsp=Collective('all_reduce', nbytes(params)).sent(workers),
  )
