"""A coordinator that is far away: a relay that delays everything."""

import asyncio
from collections.abc import Generator
import contextlib
import dataclasses
import threading
from typing import Any

from selsync_jax.islands.credentials import Invitation


@contextlib.contextmanager
def distant(invitation: str, seconds: float) -> Generator[str]:
  """Yields an invitation to a coordinator, each way to which takes seconds."""
  near = Invitation.parse(invitation)
  relay, made = _Relay(near.address, seconds), threading.Event()
  thread = threading.Thread(target=asyncio.run, args=(relay.serve(made),))
  thread.start()
  made.wait()
  try:
    yield str(dataclasses.replace(near, address=f'localhost:{relay.port}'))
  finally:
    relay.loop.call_soon_threadsafe(relay.ends.set)
    thread.join()


class _Relay:
  """Connects every caller to an address."""

  def __init__(self, address: str, seconds: float):
    host, _, port = address.rpartition(':')
    self._there, self._seconds = (host, int(port)), seconds
    self._tasks: set[Any] = set()
    self._writers: list[asyncio.StreamWriter] = []
    self.ends = asyncio.Event()

  async def serve(self, made: threading.Event) -> None:
    self.loop = asyncio.get_running_loop()
    server = await asyncio.start_server(self._connect, 'localhost', 0)
    self.port = server.sockets[0].getsockname()[1]
    made.set()
    await self.ends.wait()
    server.close()
    for writer in self._writers:
      writer.transport.abort()
    await asyncio.gather(*self._tasks)
    await asyncio.sleep(self._seconds)  # Until nothing is on its way.

  async def _connect(
    self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    self._tasks.add(asyncio.current_task())
    self._writers.append(writer)
    try:
      other, there = await asyncio.open_connection(*self._there)
    except OSError:
      writer.close()
      return
    self._writers.append(there)
    await asyncio.gather(self._pump(reader, there), self._pump(other, writer))

  async def _pump(
    self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
  ) -> None:
    later = asyncio.get_running_loop().call_later
    with contextlib.suppress(OSError):
      while data := await reader.read(1 << 16):
        later(self._seconds, writer.write, data)
    later(self._seconds, writer.close)
