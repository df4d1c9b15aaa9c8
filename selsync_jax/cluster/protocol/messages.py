"""All messages: of islands and the coordinator, and between islands."""

from collections.abc import Mapping, Sequence
import contextlib
import hashlib
import math
from typing import Annotated, Any, Literal, TypeVar

import ml_dtypes  # noqa: F401  # Registers the name bfloat16 in NumPy.
import msgspec
import numpy as np

Text = Annotated[
  str,
  msgspec.Meta(min_length=1, max_length=300, pattern=r'^[^\x00-\x1f\x7f]+\Z'),
]
Kind = Literal[
  'vote', 'average', 'commit', 'landing', 'admit', 'leave', 'enter'
]
Key = tuple[int, str, int]

FOLDS = {'psum': np.add, 'pmax': np.maximum, 'pmin': np.minimum}
"""Operations that fold votes, by the name of JAX's primitive."""

_WORDS = {
  'vote': 'the vote of step {next}',
  'average': 'the average of step {next}',
  'commit': 'the end of the average of step {next}',
  'landing': 'the arrival of a late average in step {next}',
  'admit': 'the admission after step {step}',
  'leave': 'the end after step {step}',
  'enter': 'the entrance',
}


class Place(msgspec.Struct, frozen=True, array_like=True):
  """A point where islands act together. All islands visit the same places.

  Attributes:
    generation: index of the generation.
    channel: name of the channel; places of different channels are independent.
    count: index of the place in its generation and channel.
    step: number of steps that the island has taken; `None` before the first.
    kind: kind of action there.
    operation: collective there: a primitive of JAX, or `gather`.
    dtype: type of the island's array.
    shape: shape of the island's array.
  """

  generation: int
  channel: str
  count: int
  step: int | None
  kind: Kind
  operation: str = ''
  dtype: str = ''
  shape: tuple[int, ...] = ()

  @property
  def key(self) -> Key:
    """Identifies the place in a run."""
    return self.generation, self.channel, self.count

  def fits(self, other: 'Place') -> bool:
    """Returns whether this place and another island's are the same."""
    steps = self.step, other.step
    return (
      (self.kind, self.operation, self.dtype, self.shape)
      == (other.kind, other.operation, other.dtype, other.shape)
    ) and (None in steps or self.step == other.step)

  def takes(self, body: bytes) -> bool:
    """Returns whether the bytes are an array of this place."""
    if not self.dtype:
      return True
    with contextlib.suppress(TypeError):
      size = np.dtype(self.dtype).itemsize
      return len(body) == math.prod(self.shape) * size
    return False

  def __str__(self) -> str:
    """Describes the place to a user."""
    step = self.step or 0
    words = _WORDS[self.kind].format(step=step, next=step + 1)
    if not self.dtype:
      return words
    return f'{words} ({self.operation} of {Array(self.dtype, self.shape)})'


class Array(msgspec.Struct, frozen=True, array_like=True):
  """The type and shape of an array that an island serves at a place."""

  dtype: str
  shape: tuple[int, ...]

  def __str__(self) -> str:
    """Describes the array: `float32[2,3]`."""
    return f'{self.dtype}[{",".join(map(str, self.shape))}]'


class Piece(msgspec.Struct, frozen=True, array_like=True):
  """A part of an island's message that another island asks for.

  Attributes:
    key: identifies the place.
    to: index of the island that asks.
    start: offset in bytes.
  """

  key: Key
  to: Annotated[int, msgspec.Meta(ge=0)]
  start: Annotated[int, msgspec.Meta(ge=0)]


def fold(place: Place, bodies: Sequence[bytes]) -> bytes:
  """Returns the answer to a vote, from the votes in the islands' order.

  Sums are formed in this order, so that the bits are the same as if every
  island added the votes itself.
  """
  whole = b''.join(bodies)
  if place.operation not in FOLDS:
    return whole
  rows = np.frombuffer(whole, place.dtype).reshape(len(bodies), -1)
  total, add = rows[0].copy(), FOLDS[place.operation]
  for row in rows[1:]:
    add(total, row, out=total)
  return total.tobytes()


class Message(msgspec.Struct, tag=True):
  """A message on a connection between an island and the coordinator."""


class Hello(Message):
  """Opens every connection of an island: the bearer token of the run."""

  token: str


class Ask(Message):
  """Asks for something that requires no membership; `Told` answers."""

  what: Literal['key', 'status']


class Told(Message):
  """Answers `Ask`."""

  content: bytes


class Called(Message):
  """Another island calls this one at the coordinator's port.

  Attributes:
    ticket: what to present there, at the beginning of a new connection.
  """

  ticket: Annotated[str, msgspec.Meta(pattern='^[0-9a-f]{32}$')]


class Answer(Message):
  """The answer for all islands of a generation at a place.

  Attributes:
    key: identifies the place.
    admits: whether islands now wait to join or to leave.
    body: the folded votes.
  """

  key: Key
  admits: bool
  body: bytes


class Membership(Message):
  """A generation: the islands that train together.

  Attributes:
    generation: index; 0 for an island that only prepares.
    identity: distinguishes generations of one index by different coordinators.
    islands: `Join.address` of each island by name, in the workers' order.
    slots: name of the island in each slot of the run, or `FREE`.
    admissions: number of times that islands were admitted or released before.
  """

  generation: int
  identity: str
  islands: Mapping[str, str]
  slots: Sequence[str]
  admissions: int


class Known(Message):
  """An island's knowledge of the run, for a coordinator that has restarted.

  Attributes:
    membership: the last generation that the island has heard of.
    admits: whether islands wait to join or to leave.
    heard: the last answer on each channel, which others may have missed.
    reached: step in which the island waits, if all are about to stop.
    last: step after which all stop, if it is known.
  """

  membership: Membership
  admits: bool
  heard: Sequence[Answer]
  reached: int | None
  last: int | None


class Join(Message):
  """An island asks to take part.

  Attributes:
    name: name, unique in the run.
    address: `host:port` of its outbox; process 0 gives the address of JAX's
      service.
    run: each part of the island's program, by name: its text, or the
      beginning and a digest.
    timeout: seconds of silence after which this island counts as lost.
    welcomes: whether the island lets others join while it runs.
    slot: slot of the island in an earlier run, if known.
    known: the island's knowledge of the run, if it was a member before.
  """

  name: Text
  address: Text
  run: dict[Text, str]
  timeout: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
  welcomes: bool
  slot: int | None = None
  known: Known | None = None


class Arrived(Message):
  """An island has arrived at a place.

  Attributes:
    place: the place.
    body: the island's vote; `None` if the vote will follow, because the island
      is still receiving a message.
  """

  place: Place
  body: bytes | None = b''


class Accused(Message):
  """An island cannot get another island's message at a place.

  Attributes:
    key: identifies the place.
    name: name of the other island.
    why: error in its message; empty if the other island is unreachable.
  """

  key: Key
  name: str
  why: str = ''


class Acquitted(Message):
  """Withdraws an `Accused`."""

  name: str


class Stop(Message):
  """An island is asked to stop; or the coordinator asks all to wait."""


class Reached(Message):
  """The last step that an island had taken when it was asked to wait."""

  step: int


class Last(Message):
  """The step after which all islands stop."""

  step: int


class Failed(Message):
  """An island ends with an error, or by a signal.

  Attributes:
    why: the error.
    code: exit code with which the other processes of a JAX world end; other
      than 1 if a signal has stopped this one. Islands ignore it.
  """

  why: str = ''
  code: Annotated[int, msgspec.Meta(ge=0, le=255)] = 1


class Alive(Message):
  """A sign of life of an island, with its work since it joined."""

  generation: int = 0
  step: int = 0
  averages: int = 0
  aborts: int = 0
  guesses: int = 0
  mistakes: int = 0
  sent_bytes: int = 0
  received_bytes: int = 0


class Sign(Message):
  """A sign of life of the coordinator, naming any island waited for."""

  waits: str = ''


class Ended(Message):
  """An island is no longer a member.

  Attributes:
    line: the reason.
    kind: `lost` if it may rejoin by itself, `left` if it was asked to stop,
      `finished` if the run has finished, `apart` if islands have arrived at
      different places; otherwise an error.
    code: exit code of an error, for the processes of a JAX world.
  """

  line: str
  kind: Literal['lost', 'left', 'finished', 'refused', 'apart', 'error'] = (
    'error'
  )
  code: int = 1


OF_ISLANDS = (
  Hello | Ask | Join | Arrived | Accused | Acquitted | Stop | Reached | Failed
) | Alive
OF_COORDINATORS = (
  Told | Called | Membership | Answer | Stop | Last | Sign | Ended
)

Kept = TypeVar('Kept', bound=Message)

LONG = 80
"""The most characters of a value by which programs are compared."""

_encoder = msgspec.msgpack.Encoder()
_of_islands = msgspec.msgpack.Decoder(OF_ISLANDS)
_of_coordinators = msgspec.msgpack.Decoder(OF_COORDINATORS)
_piece = msgspec.msgpack.Decoder(Piece)
_array = msgspec.msgpack.Decoder(Array)


def short(value: Any) -> str:
  """Returns a value for `Join.run`: as text; of a long one, see there."""
  text = ascii(str(value))[1:-1]  # Fit for a line.
  digest = hashlib.sha256(text.encode()).hexdigest()[:16]
  return text if len(text) <= LONG else f'{text[: LONG - 20]}... {digest}'


def changed(message: Kept, **fields: Any) -> Kept:
  """Returns a message with new values of some fields."""
  return msgspec.structs.replace(message, **fields)


def encode(message: Message | Array | Piece) -> bytes:
  """Returns a message as bytes."""
  return _encoder.encode(message)


def from_island(content: bytes) -> OF_ISLANDS:
  """Inverts `encode`; raises `ValueError` unless an island sends this."""
  return _of_islands.decode(content)


def from_coordinator(content: bytes) -> OF_COORDINATORS:
  """Inverts `encode`; raises `ValueError` unless a coordinator sends this."""
  return _of_coordinators.decode(content)


def piece(content: bytes) -> Piece:
  """Inverts `encode`; raises `ValueError` for anything but a `Piece`."""
  return _piece.decode(content)


def array(metadata: Mapping[bytes, bytes] | None) -> Array | None:
  """Returns the array that an island announces, if it does so correctly."""
  with contextlib.suppress(ValueError):
    return _array.decode((metadata or {}).get(b'array', b''))
  return None
