"""A member of a run that a test can cut off."""

import socket
import time

from selsync_jax.cluster.link import Link

TOKEN = 'the token of the run'


def soon():
  return time.monotonic() + 30


class Peer:
  """The other end of a channel, which a test can cut."""

  def __init__(self, port, process, agreed):
    if process == 0:
      with socket.create_server(('localhost', port)) as server:
        self.socket, _ = server.accept()
      self.link = Link(self.socket, TOKEN, listens=True, deadline=soon())
      self.receive()
      self.send({'welcome': 'offer of 0'})
    else:
      self.socket = connect(port)
      self.link = Link(self.socket, TOKEN, listens=False, deadline=soon())
      self.send({'process': process, 'agreed': agreed})
      self.receive()

  def send(self, message):
    self.link.send(message)

  def receive(self):
    """The next message that is not a heartbeat."""
    while not (message := self.link.receive(soon())):
      pass
    return message

  def die(self):
    """Closes the socket, like the kernel for a killed process."""
    self.socket.close()


def connect(port):
  while True:
    try:
      return socket.create_connection(('localhost', port))
    except OSError:  # Process 0 does not listen yet.
      time.sleep(0.01)
