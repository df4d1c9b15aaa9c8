"""Damages to a file on a disk, in a table."""

from collections.abc import Callable
import pathlib

DEEP = b'[' * 100_000 + b']' * 100_000


def _flip(content: bytes) -> bytes:
  changed = bytearray(content)
  changed[len(changed) // 2] ^= 1
  return bytes(changed)


# By name, from the old content to the new; `None` means no file.
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
  'lost': lambda content: None,
  'empty': lambda content: b'',
  'half': lambda content: content[: len(content) // 2],
  'zeros': lambda content: bytes(len(content)),
  'zeros inside': lambda content: (
    content[: len(content) // 2] + bytes(8) + content[len(content) // 2 + 8 :]
  ),
  'flipped bit': _flip,
  'not UTF-8': lambda content: b'\xff' + content,
  'null': lambda content: b'null\n',
  'list': lambda content: b'[]\n',
  'number': lambda content: b'7\n',
  'object': lambda content: b'{}\n',
  'deep': lambda content: DEEP + b'\n',
}


BYTES = 'lost', 'half', 'flipped bit'
"""Damages to a file of arrays: only its checksum is checked."""


def inflict(path: pathlib.Path, damage: str) -> None:
  """Damages a file."""
  content = DAMAGES[damage](path.read_bytes())
  if content is None:
    path.unlink()
  else:
    path.write_bytes(content)
