"""Server of the messages that an island has for others."""

from collections.abc import Sequence
import threading
import time
from typing import Any

import numpy as np

from selsync_jax.islands.flight import arrow, Credentials, flight, Server
from selsync_jax.islands.meter import Meter
from selsync_jax.islands.protocol import messages
from selsync_jax.islands.protocol.messages import Key

PIECE = 1 << 22
"""The most bytes of one call, which has a deadline and may be repeated."""

BLOCK = 1 << 20
"""The most bytes of one record batch."""

_COLUMNS = [('block', arrow.large_binary())]

PATIENCE = 2.0
"""Seconds for which a call waits for a message that is not ready yet."""


class Outbox(Server):
  """Serves the messages that an island has for others.

  Args:
    address: see `Server`.
    credentials: see `Server`.
    meter: counts sent bytes.
    limit: the most bytes per second that are sent; `None` sets no limit.
  """

  def __init__(
    self,
    address: str,
    credentials: Credentials,
    meter: Meter,
    limit: float | None = None,
  ):
    self._meter, self._limit = meter, limit
    self._pacing, self._until = threading.Lock(), 0.0
    self._messages: dict[Key, Sequence[np.ndarray]] = {}
    super().__init__(address, credentials)

  def put(self, key: Key, messages: Sequence[np.ndarray]) -> None:
    """Keeps the messages of an exchange, one for each island."""
    each = {id(x): np.asarray(x, order='C') for x in messages}
    with self.changed:
      self._messages[key] = [each[id(x)] for x in messages]
      self.changed.notify_all()

  def drop(self, key: Key) -> None:
    """Discards the messages of an exchange, which all islands have received."""
    with self.changed:
      self._messages.pop(key, None)

  def clear(self) -> None:
    """Discards all messages."""
    with self.changed:
      self._messages.clear()

  def do_exchange(
    self, context: Any, descriptor: Any, reader: Any, writer: Any
  ) -> None:
    """Answers a call for a piece of a message, which may not be ready yet.

    Unlike a call of `do_get`, the caller can cancel this before any answer.
    """
    del context, reader
    asked = messages.piece(descriptor.command)
    with self.changed:
      self.changed.wait_for(
        lambda: self.is_closed or asked.key in self._messages, PATIENCE
      )
      if asked.key not in self._messages:
        raise flight.FlightTimedOutError('the message is not there yet')
      message = self._messages[asked.key][asked.to]
    about = messages.Array(message.dtype.name, message.shape)
    schema = arrow.schema(_COLUMNS, metadata={'array': messages.encode(about)})
    piece = message.reshape(-1).view(np.uint8)[asked.start :][:PIECE]
    writer.begin(schema)
    for at in range(0, piece.size or 1, BLOCK):
      block = piece[at : at + BLOCK]
      self._wait_for_turn(block.size)
      writer.write_batch(_batch(block, schema))
      self._meter.add(sent_bytes=block.size)

  def _wait_for_turn(self, size: int) -> None:
    """Waits until sending this many more bytes keeps within the limit."""
    if self._limit:
      with self._pacing:
        self._until = max(self._until, time.monotonic()) + size / self._limit
        until = self._until
      time.sleep(max(0.0, until - time.monotonic()))


def _batch(block: np.ndarray, schema: arrow.Schema) -> arrow.RecordBatch:
  """Returns a batch of these bytes, without a copy."""
  offsets = arrow.py_buffer(np.array([0, block.size], np.int64))
  buffers = [None, offsets, arrow.py_buffer(block)]
  column = arrow.Array.from_buffers(arrow.large_binary(), 1, buffers)
  return arrow.record_batch([column], schema=schema)


def content(batch: arrow.RecordBatch) -> arrow.Buffer | None:
  """Inverts `_batch`; `None` if no outbox makes such a batch."""
  if batch.schema.types != [arrow.large_binary()] or batch.num_rows != 1:
    return None
  return batch.column(0)[0].as_buffer()
