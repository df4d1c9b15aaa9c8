"""Islands that join a running meeting, in threads of a test."""

from concurrent import futures
import contextlib

import numpy as np

from selsync_jax.cluster import connection
from selsync_jax.cluster.protocol import messages
from selsync_jax.islands import credentials, joining, server
from selsync_jax.islands.program import complete


@contextlib.contextmanager
def met(
  names, islands=None, *, timeout=20.0, welcomes=True, relay=False, **served
):
  """Serves a coordinator and joins islands, which leave at the end.

  Args:
    names: names of the islands.
    islands: N, the number of islands; `None`: as many as names.
    timeout: timeout of each island.
    welcomes: whether each island admits islands while it runs.
    relay: see `joining.join`.
    **served: see `CoordinatorServer`.

  Yields:
    The coordinator, the islands' peers, and a function that joins another
    island by its name.
  """
  with (
    server.CoordinatorServer(islands or len(names), **served) as point,
    futures.ThreadPoolExecutor(16) as pool,
  ):
    joined = []

    def join(name):
      given = {'timeout': timeout, 'welcomes': welcomes, 'relay': relay}
      peers = joining.join(point.invitation, name, 'a run', **given)
      joined.append(peers)
      return peers

    yield point, [*pool.map(join, names)], join
    futures.wait(pool.submit(peers.close) for peers in joined)


def came(point, pool, *names, run='a run'):
  """Joins islands; returns futures of their peers."""
  invitation = joining.Invitation.parse(str(point.invitation))
  return [
    pool.submit(joining.join, invitation, name, run, 20.0) for name in names
  ]


def until(said, line):
  """Waits until the coordinator has printed a line."""
  while line not in said.get(timeout=20):
    pass


def enter(peers):
  """Joins the other islands; returns the islands."""
  peers.enter()
  return peers


def admit(islands, pool):
  """Admits waiting islands, after one of the next shares."""

  def step(peers):
    while not peers.admits:
      complete(peers, lambda peers: peers.share(np.zeros(1)))
    peers.admit()

  futures.wait(pool.submit(step, peers) for peers in islands)


@contextlib.contextmanager
def said_by_hand(point, *said, token=None):
  """Sends messages on a new connection; returns how to hear the answers."""

  def frame(message):
    return connection.frame(messages.encode(message))

  context = credentials.client_context()
  plain = connection.dial(point.invitation.address, 20.0)
  with context.wrap_socket(plain) as link, link.makefile('rb') as file:
    for message in (messages.Hello(token or point.invitation.token), *said):
      link.sendall(frame(message))

    def hear():
      size = int.from_bytes(file.read(4))
      return messages.from_coordinator(file.read(size)) if size else None

    hear.say = lambda message: link.sendall(frame(message))
    yield hear
