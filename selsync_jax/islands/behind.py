"""Averages that travel during later steps.

A delayed mean has several steps to arrive. A background thread sends it on a
separate channel. The step that needs the mean waits if it has not arrived, so
the network's speed affects a run's time, never its result.
"""

from collections.abc import Callable
from concurrent import futures
import time
from typing import Any

import jax
import numpy as np

from selsync_jax.cluster.protocol.member import Regrouped
from selsync_jax.data.pace import Watch
from selsync_jax.islands.peers import Late, Peers
from selsync_jax.islands.program import complete, cut, Form, PLAIN
from selsync_jax.sync.delay import Delayed


class Behind(Late):
  """Delayed averages, sent in the background.

  Attributes:
    arrived: whether the newest average that was needed had arrived in time on
      all islands; callers set it to `None` before a step.
    watch: measures how long averages travel.
  """

  def __init__(self, peers: Peers, averager: Delayed, form: Form = PLAIN):
    self._peers, self._background = peers, peers.channel('behind')
    self._message = averager.message
    self._travel = cut(averager.travel, form.speaking)
    self._whole = form.whole
    self._thread = futures.ThreadPoolExecutor(1, 'average')
    self._departed: futures.Future[Any] | None = None
    self.arrived: bool | None = None
    self.watch = Watch()

  def depart(self, state: Any) -> None:
    """Starts sending an average, from the averager's state after the step."""
    message = self._whole(self._message(state))
    if not self._background:
      return
    self._background.departs()
    departed = self._thread.submit(self._carry, self._background, message)
    if self._peers.prepares:
      departed.result()  # The result is discarded.
    else:
      self._departed = departed

  def _carry(self, peers: Peers, message: Any) -> Any:
    began = time.perf_counter()
    mean = self._travel(peers, *message)
    self.watch.add(time.perf_counter() - began)
    return mean

  def arrive(self, compute: Callable[[Peers], Any]) -> Any:
    if self._peers.prepares:
      return self._peers.led(compute)
    self.arrived = self._peers.land(self._has_arrived)
    return self._peers.led(self._mean if self.arrived else compute)

  def _has_arrived(self) -> bool:
    """Waits for the mean, if it is in flight."""
    if not self._departed:
      return False
    try:
      self._departed.result()
    except Regrouped:
      return False
    return True

  def _mean(self, _: Peers) -> list[Any]:
    assert self._departed
    return jax.tree.leaves(self._departed.result())

  def settle(self) -> None:
    if self._departed:
      futures.wait([self._departed])


def steps_of_travel(peers: Peers, step: Watch, average: Watch) -> float | None:
  """Returns in how many steps an average travels, the same on all islands.

  All islands call this together, and the slowest one counts. The result is
  `None` if an island has measured no step or no average yet. A measured step
  sends and waits for nothing except votes.
  """
  own = np.array([step.median, average.median])
  seconds = np.array(complete(peers, lambda peers: peers.share(own)))
  of_step, of_average = seconds.max(axis=0) * seconds.all()
  return float(np.float32(of_average / of_step)) if of_step else None
