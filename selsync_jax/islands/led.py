"""Islands of several processes, of which the first speaks for all.

The processes of an island share one JAX runtime and run one program. The first
process exchanges messages with other islands, and gives the others the result,
or the error, over the fast links between them. So all processes take the same
path through the program, whatever happens to other islands.
"""

from collections.abc import Callable
import pickle
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from selsync_jax.cluster import processes
from selsync_jax.cluster.preemption import Agreement
from selsync_jax.cluster.protocol.member import Regrouped
from selsync_jax.config import ConfigError, LostError, RunError, Stopped
from selsync_jax.islands.peers import Peers, View


def _of_first(name: str) -> Any:
  """Returns a method with the result that it has in the first process."""
  return lambda self, *args: self._led(lambda: getattr(self.outer, name)(*args))


def _without_late(name: str) -> Any:
  """Returns such a method, which first waits until no mean is in flight."""
  return lambda self: self._led(
    lambda: (self.late and self.late.settle(), getattr(self.outer, name)())
  )


def _in_first(name: str) -> Any:
  """Returns a method that the first process alone has; others return `None`."""
  return lambda self, *args: self.outer and getattr(self.outer, name)(*args)


class Led(Peers):
  """The run's islands, seen from a process of an island of several.

  All processes of the island make the same calls. Only the first one calls
  `join`, and has other channels; all of them raise its errors.
  """

  view = View((), 0, ())  # The view of the first process.

  def __init__(self, join: Callable[[], Peers]):
    self.outer: Any = None  # Only in the first process.
    self.agreement = _LedAgreement(self)
    self._led(lambda: self._join(join))

  def _join(self, join: Callable[[], Peers]) -> None:
    self.outer = join()

  exchange, share, fold, land, shows = map(
    _of_first, ('exchange', 'share', 'fold', 'land', 'shows')
  )
  enter, admit, regroup = map(_without_late, ('enter', 'admit', 'regroup'))
  channel, reach, averaged, close, fail = map(
    _in_first, ('channel', 'reach', 'averaged', 'close', 'fail')
  )

  def led(self, do: Callable[[Peers], Any]) -> Any:
    return self._led(lambda: jax.tree.map(np.asarray, do(self.outer)))

  def conclude(self) -> None:
    if self.view.exchanged:
      self._led(lambda: self.outer.conclude())

  def _led(self, do: Callable[[], Any]) -> Any:
    """Returns, or raises, in all processes the first one's outcome of `do`."""
    content = b''
    if processes.is_first():
      result, error = None, None
      try:
        result = do()
      except LostError as raised:  # All would have to restart.
        error = RunError(str(raised))
      except (ConfigError, Regrouped, RunError, Stopped) as raised:
        error = raised
      view = self.outer and self.outer.view
      content = pickle.dumps((result, error, view))
    result, error, self.view = pickle.loads(processes.bytes_from_first(content))
    if error:
      raise error
    return result


class _LedAgreement(Agreement):
  """Agreement for an island whose processes may each be asked to stop."""

  def __init__(self, peers: Led):
    super().__init__()
    self._peers = peers

  def ask(self) -> None:
    self.is_asked = True  # A signal handler must not wait for other processes.
    if self._peers.outer:
      self._peers.outer.agreement.ask()

  def stops_after(self, step: int) -> bool:
    asked = multihost_utils.process_allgather(np.array([self.is_asked]))
    if np.any(asked) and not self.is_asked:
      self.ask()
    return bool(
      self._peers.led(lambda peers: peers.agreement.stops_after(step))
    )
