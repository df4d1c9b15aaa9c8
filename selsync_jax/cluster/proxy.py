"""A local TCP proxy that hides the end of JAX's coordination service.

Process 0 runs that service. If it dies, a JAX client aborts its process with a
C++ stack trace, perhaps before the world has reported which process is gone.
A client that connects through a proxy in its own process keeps its connection,
so the world can print one line and end the process. If the world does not,
JAX's heartbeat timeout still ends it.
"""

from collections.abc import Callable
import contextlib
import socket
import threading
import time
from typing import Any


def start(address: str) -> str:
  """Starts a proxy in this process, and returns its `host:port`.

  The server at `address`, also `host:port`, need not listen yet.
  """
  listener = socket.create_server(('127.0.0.1', 0))
  host, _, port = address.rpartition(':')
  _start_thread(_serve, listener, (host.strip('[]'), int(port)))
  return f'127.0.0.1:{listener.getsockname()[1]}'


def _serve(listener: socket.socket, address: tuple[str, int]) -> None:
  while True:
    client, _ = listener.accept()
    _start_thread(_connect, client, address)


def _connect(client: socket.socket, address: tuple[str, int]) -> None:
  """Keeps the client's connection open until the client closes it."""
  while True:
    try:
      server = socket.create_connection(address)
      break
    except OSError:
      time.sleep(0.05)
  for connection in client, server:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  _start_thread(_forward, server, client)
  _forward(client, server)
  with contextlib.suppress(OSError):
    server.shutdown(socket.SHUT_RDWR)


def _forward(source: socket.socket, sink: socket.socket) -> None:
  """Forwards data until the source closes; drops it if the sink is closed."""
  with contextlib.suppress(OSError):
    while data := source.recv(2**16):
      with contextlib.suppress(OSError):
        sink.sendall(data)


def _start_thread(function: Callable[..., None], *args: Any) -> None:
  threading.Thread(target=function, args=args, daemon=True).start()
