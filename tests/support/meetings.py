"""Islands that join a running meeting, in threads of a test."""

from concurrent import futures

import numpy as np

from selsync_jax.islands import meeting


def came(point, pool, *names, run='a run'):
  """Islands that join, as futures of their peers."""
  invitation = meeting.Invitation.parse(str(point.invitation))
  return [
    pool.submit(meeting.join, invitation, name, run, 20.0) for name in names
  ]


def until(said, line):
  """Returns once the meeting point has said this."""
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
      peers.complete(lambda peers: peers.share(np.zeros(1)))
    peers.admit()

  futures.wait(pool.submit(step, peers) for peers in islands)
