"""The fingerprint of a run: what a config names but does not contain.

A config names a data set, a model and perhaps a trace of a cluster, or weights
to start from. Files and code behind these names can change between two
sessions. The fingerprint detects that, so that no run is a mixture without a
word.
"""

from collections.abc import Mapping
import contextlib
import json
import pathlib
from typing import Any
import zlib

from selsync_jax.config import ConfigError
from selsync_jax.runs import files

FINGERPRINT = 'fingerprint.json'
_PROGRAM, _IN_COLOR = 'model.program', 'program_in_color'
_VERSIONS = 'model.versions.'


def write(workdir: pathlib.Path, found: Mapping[str, Any]) -> None:
  """Writes the fingerprint of a run, sealed by its checksum.

  What an earlier session found and this one does not stays.
  """
  with contextlib.suppress(files.DamagedFile):
    found = {**_read(workdir), **found}
  sealed = {**found, 'crc32': _checksum(found)}
  files.write_json(workdir / FINGERPRINT, sealed)


def _read(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns the fingerprint of a run, empty if there is none."""
  recorded = files.read(workdir / FINGERPRINT, dict)
  if recorded is None:
    return {}
  if recorded.pop('crc32', None) != _checksum(recorded):
    raise files.DamagedFile(workdir / FINGERPRINT, 'its checksum differs')
  return recorded


def _checksum(found: Mapping[str, Any]) -> int:
  return zlib.crc32(json.dumps(found, sort_keys=True).encode())


def check(
  workdir: pathlib.Path, found: Mapping[str, Any], accept: bool
) -> list[str]:
  """Returns what differs from a run, as `data.train.examples was 4, now 2`.

  It refuses differences that are not accepted. There are none for a new run.
  Models that different versions of JAX or Flax have traced are not compared.
  Nor is what an earlier version did not record, or this session did not read.

  Raises:
    ConfigError: if something differs that is not accepted.
    DamagedFile: if the fingerprint is damaged; then nothing can be compared.
  """
  different = _differences(_read(workdir), found)
  if different and not accept:
    raise ConfigError(
      f'{workdir} holds a run with other data, model or initial weights: '
      f'{", ".join(different)}; undo the change, or accept it with '
      '--accept_changes'
    )
  return different


def _differences(recorded: Any, found: Any) -> list[str]:
  changes = {
    name: (old, new)
    for name, old, new in files.differences(recorded, found)
    if old is not None and new is not None
  }
  skipped = {name for name in changes if name.startswith(_VERSIONS)}
  program, _ = changes.get(_PROGRAM, (None, None))
  if skipped or program == found['model'][_IN_COLOR]:
    skipped.add(_PROGRAM)
  return [
    f'{name} was {old}, now {new}'
    for name, (old, new) in changes.items()
    if name not in skipped and not name.endswith(_IN_COLOR)
  ]
