"""Averages that travel behind the steps.

A delayed mean has several steps to arrive. It travels on a channel of its own,
in a thread. The step that needs it waits if it has not arrived: the network's
speed affects a run's time, never its result.
"""

from collections.abc import Callable
from concurrent import futures
import time
from typing import Any

import jax
import numpy as np

from selsync_jax.data.pace import Watch
from selsync_jax.islands.peers import Late, Peers
from selsync_jax.islands.program import cut, Form, PLAIN
from selsync_jax.islands.protocol.member import Regrouped
from selsync_jax.sync.averagers import Delay


class Behind(Late):
  """Delayed means that travel in the background.

  Args:
    peers: all islands.
    delay: the delay of the steps' averager.
    form: how the averager's state lies.

  Attributes:
    arrived: whether the mean that was needed last was there on all islands;
      callers set it to `None` before.
    watch: how long they travel.
  """

  def __init__(self, peers: Peers, delay: Delay, form: Form = PLAIN):
    self._peers, self._background = peers, peers.channel('behind')
    self._message = delay.message
    self._travel = cut(delay.travel, form.speaking)
    self._whole = form.whole
    self._thread = futures.ThreadPoolExecutor(1, 'average')
    self._departed: futures.Future[Any] | None = None
    self.arrived: bool | None = None
    self.watch = Watch()

  def depart(self, state: Any) -> None:
    """Sends an average on its way, after the step that synchronized.

    Args:
      state: the averager's state after that step.
    """
    message = self._whole(self._message(state))
    if not self._background:
      return
    self._background.departs()
    departed = self._thread.submit(self._carry, self._background, message)
    if self._peers.prepares:
      departed.result()  # It counts for nothing.
    else:
      self._departed = departed

  def _carry(self, peers: Peers, message: Any) -> Any:
    began = time.perf_counter()
    mean = self._travel(peers, *message)
    self.watch.add(time.perf_counter() - began)
    return mean

  def arrive(self, compute: Callable[[Peers], Any]) -> Any:
    """Returns the mean that has departed; waits until it is there.

    If a run has resumed, or an island has ended, some may not have it: then
    `compute` does it again.
    """
    if self._peers.prepares:
      return self._peers.led(compute)
    self.arrived = self._peers.land(self._has_arrived)
    return self._peers.led(self._mean if self.arrived else compute)

  def _has_arrived(self) -> bool:
    """Waits for the mean, if it is on its way."""
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
    """Waits until nothing travels."""
    if self._departed:
      futures.wait([self._departed])


def steps_of_travel(peers: Peers, step: Watch, average: Watch) -> float | None:
  """Returns in how many steps an average travels, the same on all islands.

  All islands call it together; the slowest counts. It is `None` if one has
  measured no step or no average, as after a start.

  Args:
    peers: all islands.
    step: how long steps take in which nothing is sent or waited for but votes.
    average: how long averages travel.
  """
  own = np.array([step.median, average.median])
  seconds = np.array(peers.complete(lambda peers: peers.share(own)))
  of_step, of_average = seconds.max(axis=0) * seconds.all()
  return float(np.float32(of_average / of_step)) if of_step else None
