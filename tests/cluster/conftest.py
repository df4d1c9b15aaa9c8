"""Processes of a run, as threads of this process."""

import contextlib
import gc
import os
import queue
import socket
import threading

import pytest

from selsync_jax.cluster import channel as channels
from selsync_jax.cluster import signals
from selsync_jax.cluster.channel import Channel
from selsync_jax.cluster.reception import ClusterError
from tests.support.members import Peer, TOKEN


@pytest.fixture(scope='module', autouse=True)
def collect_sockets():
  """Collects sockets that warn while this module's filters still hold."""
  yield
  gc.collect()


@pytest.fixture
def port():
  with socket.create_server(('localhost', 0)) as server:
    return server.getsockname()[1]


@pytest.fixture(scope='module')
def codes():
  """Exit codes of channels that end their process, which stays alive here."""
  codes = queue.Queue()

  def end(code):
    codes.put(code)
    raise SystemExit  # Ends only the watching thread.

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(os, '_exit', end)
    patch.setattr(signals, 'discard_output', lambda: None)  # Pytest continues.
    patch.setattr(channels, 'GRACE', 0.2)
    yield codes


@pytest.fixture
def ends(codes):
  """The exit codes of one test."""
  while not codes.empty():
    codes.get()
  return codes


@pytest.fixture
def meet(port, ends):
  """Opens the channels of several processes at once, in threads.

  `meet((process, agreed), ..., timeout=30.0)` returns each one's channel, or
  the `ClusterError` that it raised. A member may have its own token:
  `(process, agreed, token)`.
  """
  del ends  # The channels fail before their process could end.
  opened = []

  def join(results, i, timeout, process, agreed, token=TOKEN):
    address, offer = f'localhost:{port}', f'offer of {process}'
    try:
      results[i] = Channel(address, process, agreed, offer, timeout, token)
      opened.append(results[i])
    except ClusterError as error:
      results[i] = error

  def meet(*members, timeout=30.0):
    results = [None] * len(members)
    threads = [
      threading.Thread(target=join, args=(results, i, timeout, *member))
      for i, member in enumerate(members)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    return results

  yield meet
  for channel in opened:
    channel.leave()
    channel.close()
  for channel in opened:  # A process would end, and its sockets with it.
    for link in channel._peers.values():
      with contextlib.suppress(OSError):  # Wakes receiving threads.
        link._peer.shutdown(socket.SHUT_RDWR)
      link.close()
  for channel in opened:  # None ends the process in a later test.
    for watcher in channel._watchers:
      watcher.join(30)


@pytest.fixture
def meet_peer(port, meet):
  """Opens channels of members and a `Peer`: `meet_peer(peer, *members)`."""
  made = []

  def meet_peer(number, *members, timeout=30.0):
    agreed, peers = {'processes': 1 + len(members)}, []
    thread = threading.Thread(
      target=lambda: peers.append(Peer(port, number, agreed))
    )
    thread.start()
    channels = meet(*((m, agreed) for m in members), timeout=timeout)
    thread.join()
    made.extend(peers)
    return *channels, *peers

  yield meet_peer
  for peer in made:
    peer.die()
