"""The other islands of a run, seen from one of them.

A transport sends a message to each island and receives one from each.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
import functools
import operator
from typing import Any, NamedTuple

import numpy as np

from selsync_jax.cluster import signals
from selsync_jax.cluster.preemption import Agreement
from selsync_jax.cluster.protocol.messages import FOLDS
from selsync_jax.config import Stopped

SMALL = 1 << 12
"""The largest array, in bytes, that every island sends whole to all others.

Larger arrays take a reduce-scatter and an all-gather: two exchanges, in which
an island receives 2 (N - 1) messages of size 1/N each.
"""


class View(NamedTuple):
  """The member islands, seen from one of them.

  Attributes:
    names: the islands' names, in the order of their indices.
    index: this island's index.
    slots: names of all islands of the run, in the order of the workers; empty
      for an island that has not joined yet.
    prepares: whether this island is still preparing to join training islands.
      It exchanges nothing: its program gets zeros from collectives, and runs
      every branch that has some.
    was_admitted: whether islands that were training have admitted this one.
    admits: whether islands wait for `admit`, to join or to leave. It becomes
      true on all islands within a call that all of them make.
    exchanged: whether other islands may still be completing an exchange.
  """

  names: Sequence[str]
  index: int
  slots: Sequence[str]
  prepares: bool = False
  was_admitted: bool = False
  admits: bool = False
  exchanged: bool = False


class About(NamedTuple):
  """Type and shape of exchanged arrays.

  Attributes:
    operation: the collective.
    like: an array with the type and shape of every island's array.
    received: an array of the expected shape by sender.
  """

  operation: str
  like: np.ndarray
  received: Sequence[np.ndarray]


class Peers(abc.ABC):
  """The islands of a run, with the fields of `View`, and their messages.

  Attributes:
    late: carrier of delayed means during later steps; `None` if there is none.
  """

  names, index, slots, prepares, was_admitted, admits = (
    property(operator.attrgetter(f'view.{name}')) for name in View._fields[:-1]
  )
  late: 'Late | None' = None

  @property
  @abc.abstractmethod
  def view(self) -> View:
    """The islands that are members now."""

  @property
  def size(self) -> int:
    """N, the number of member islands."""
    return len(self.names)

  @property
  def slot(self) -> int:
    """This island's index among all slots of the run."""
    return self.slots.index(self.names[self.index])

  @functools.cached_property
  def agreement(self) -> Agreement:
    """This island's part in agreeing on the last step.

    If enough others are left, an island that is asked to stop leaves alone:
    then its next call raises `Stopped`.
    """
    return Agreement()

  @abc.abstractmethod
  def channel(self, name: str) -> 'Peers | None':
    """Returns a separate channel to the same islands.

    It is `None` in a process that does not speak for its island.
    """

  def led(self, do: Callable[['Peers'], Any]) -> Any:
    """Returns `do(peers)` of the process that speaks for this island.

    All processes of the island call it; if there are several, each gets host
    arrays.
    """
    return do(self)

  def enter(self) -> None:  # noqa: B027
    """Joins the training islands when all are ready, if this one prepares.

    Raises:
      RunError: if the others have ended, and do not start again.
      FinishedError: if they have finished the run.
    """

  def admit(self) -> None:  # noqa: B027
    """Continues with joining islands, and without leaving ones.

    All islands call it after the same step.

    Raises:
      Stopped: if this island leaves because it was asked to.
    """

  def conclude(self) -> None:  # noqa: B027
    """Returns when all islands have completed their exchanges.

    Raises:
      Regrouped: if some have not.
    """

  def regroup(self) -> None:  # noqa: B027
    """Continues with the islands that are left after it was `Regrouped`."""

  @abc.abstractmethod
  def exchange(
    self, messages: Sequence[np.ndarray], about: About | None = None
  ) -> list[np.ndarray]:
    """Sends `messages[i]` to island i, and returns one message from each.

    All islands make the same calls on a channel. Neither sent nor received
    messages may be changed. Without `about`, all are like the first message.

    Raises:
      Regrouped: if islands have ended, and the others continue.
      RunError: if an island does not answer.
    """

  def share(self, message: np.ndarray) -> list[np.ndarray]:
    """Sends a small message to all islands, and returns each island's message.

    All messages have the same shape and type.
    """
    return self.exchange([message] * self.size)

  def fold(self, operation: str, message: np.ndarray) -> np.ndarray:
    """Returns the sum, maximum or minimum of small messages of all islands."""
    return folded(FOLDS[operation], self.share(message))

  def gather(self, message: np.ndarray) -> list[np.ndarray]:
    """Returns the message of each island; shapes and types are equal."""
    if is_small(message):
      return self.share(message)
    return self.exchange([message] * self.size)

  def land(self, arrive: Callable[[], bool]) -> bool:
    """Returns whether a delayed average has arrived on all islands.

    `arrive` waits for it, and returns whether it has arrived on this one.
    """
    return bool(self.fold('pmin', np.array(arrive())))

  def arrive(self, compute: Callable[['Peers'], Any]) -> Any:
    """Returns a delayed average, which `compute(peers)` forms.

    See `Late.arrive`; without a carrier, it is formed now.
    """
    return self.late.arrive(compute) if self.late else self.led(compute)

  def departs(self) -> None:  # noqa: B027
    """Notes in which step this channel's next exchange departs."""

  def reach(self, step: int) -> None:  # noqa: B027
    """Notes the last step that this island has taken, for `selsync status`."""

  def shows(self, arrays: Mapping[str, Any]) -> None:  # noqa: B027
    """Notes the arrays, by name, of which averages are made, for the audit."""

  def averaged(self) -> None:  # noqa: B027
    """Notes that an average has been applied, for `selsync status`."""

  def guessed(self, is_right: bool) -> None:  # noqa: B027
    """Notes a vote whose answer was not waited for, for `selsync status`."""

  def close(self, finished: bool = True) -> None:  # noqa: B027
    """Leaves, when all islands have fetched this island's messages.

    Args:
      finished: whether the run has finished; otherwise, all may rejoin.

    Raises:
      ApartError: if the others are not about to leave.
    """

  def fail(self, why: str = '') -> None:  # noqa: B027
    """Leaves at once; the others hear that this island has failed, and why."""

  def __enter__(self) -> 'Peers':
    return self

  def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
    """Leaves or fails, depending on how the body has ended."""
    if kind is None or _ends_well(error):
      self.close(kind is None)
    else:
      line = f'{kind.__name__}: {error}'.partition('\n')[0]
      self.fail(line[:200].rstrip(': '))


def _ends_well(error: Any) -> bool:
  """Returns whether an exception ends its loop without a failure."""
  if isinstance(error, SystemExit):
    return error.code in (None, 0, signals.RESUMABLE)
  return isinstance(error, Stopped)


class Late(abc.ABC):
  """Carrier of delayed means during later steps."""

  @abc.abstractmethod
  def arrive(self, compute: Callable[[Peers], Any]) -> Any:
    """Returns the mean that has departed; waits until it has arrived.

    After a resume, or when an island has ended, some islands may not have the
    mean: then `compute(peers)` forms it again, in the process that speaks for
    this island.
    """

  @abc.abstractmethod
  def settle(self) -> None:
    """Waits until no mean is in flight."""


def is_small(x: np.ndarray) -> bool:
  """Returns whether every island sends an array whole to all others."""
  return x.nbytes <= SMALL


def folded(op: np.ufunc, messages: Sequence[np.ndarray]) -> np.ndarray:
  """Reduces messages by `op`, in their order and in their type."""
  total = messages[0].copy()
  for message in messages[1:]:
    op(total, message, out=total)
  return total
