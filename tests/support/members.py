"""Processes of a JAX world as a test sees them."""

import socket
import time

from selsync_jax.cluster.connection import SignedFrames

TOKEN = 'the token of the run'


def die(world):
  """Ends the connections of a process, like the kernel for a killed one."""
  world._leaving.set()  # The test continues.
  if world._server:
    world._server.shutdown()
  link = world._link
  link._closes = True
  link._loop.call(lambda: link._frames and link._frames.transport.abort())
  link._closed.wait(30)


def freeze(world, seconds):
  """Stops the threads of a process, like SIGSTOP."""
  if world._server:
    world._server._loop.call(time.sleep, seconds)
  world._link._loop.call(time.sleep, seconds)


class Caller:
  """The calling end of a connection to process 0, without an event loop."""

  def __init__(self, plain, token):
    self.plain, self.heard = plain, []
    plain.settimeout(30)
    self.frames = SignedFrames(
      lambda _: self.heard.append('its number'),
      lambda _, content: self.heard.append(content),
      lambda _: None,
      token=token,
      listens=False,
    )
    self.frames.connection_made(self)
    self.receive()

  def receive(self):
    """Returns what has arrived; nothing if process 0 has closed."""
    while not self.heard and (data := self.plain.recv(2**14)):
      self.frames.data_received(data)
      if self.frames.stranger:
        break
    return self.heard.pop() if self.heard else None

  # The methods of a transport that the frames call.

  def write(self, data):
    self.plain.sendall(data)

  def is_closing(self):
    return False

  def get_write_buffer_size(self):
    return 0

  def close(self):
    self.plain.close()


def connect(port):
  while True:
    try:
      return socket.create_connection(('localhost', port))
    except OSError:  # Process 0 does not listen yet.
      time.sleep(0.01)
