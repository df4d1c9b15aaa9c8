"""A manifest of a checkpoint's files: the size and CRC-32 of each.

It detects files that are lost, truncated or changed after they were written.
"""

from collections.abc import Iterator
import json
import pathlib
import zlib

from selsync_jax.runs import files

MANIFEST = 'manifest.json'
# Orbax adds time stamps to its own file after the manifest is written.
_NOT_LISTED = (MANIFEST, '_CHECKPOINT_METADATA')


def write(folder: pathlib.Path) -> None:
  """Writes the manifest of a checkpoint beside its files."""
  files.write(folder / MANIFEST, json.dumps(dict(_checksums(folder))))


def damage(
  folder: pathlib.Path, only: pathlib.PurePath | None = None
) -> str | None:
  """Describes the damage to a checkpoint's files, or to the only one of a path.

  It is `None` if they are intact.
  """
  try:
    manifest = files.read(folder / MANIFEST, dict[str, list[int]])
    present = dict(_checksums(folder, str(only or '*')))
  except (files.DamagedFile, OSError) as error:
    return str(error)
  if not manifest:
    return f'{MANIFEST} is missing or empty'
  for name in [str(only)] if only else manifest:
    if name not in present:
      return f'{name} is missing'
    if present[name] != manifest.get(name):
      return f'{name} does not match its checksum'
  return None


def _checksums(
  folder: pathlib.Path, pattern: str = '*'
) -> Iterator[tuple[str, list[int]]]:
  """Yields the relative path and `[size in bytes, CRC-32]` of every file."""
  for path in sorted(folder.rglob(pattern)):
    if path.is_file() and path.name not in _NOT_LISTED:
      content = path.read_bytes()
      checksum = [len(content), zlib.crc32(content)]
      yield str(path.relative_to(folder)), checksum
