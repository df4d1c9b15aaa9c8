"""Islands that join a running meeting, in threads of a test."""

from concurrent import futures
import contextlib

import numpy as np

from selsync_jax.islands import connection, joining
from selsync_jax.islands.program import complete
from selsync_jax.islands.protocol import messages


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
  context = connection.client_context()
  plain = connection.dial(point.invitation, 20.0)
  with context.wrap_socket(plain) as link, link.makefile('rb') as file:
    for message in (messages.Hello(token or point.invitation.token), *said):
      link.sendall(connection.frame(message))

    def hear():
      size = int.from_bytes(file.read(4))
      return messages.from_coordinator(file.read(size)) if size else None

    hear.say = lambda message: link.sendall(connection.frame(message))
    yield hear
