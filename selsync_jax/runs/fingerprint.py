"""The fingerprint of a run: files and code that its config only names.

A config names a data set, a model, a method and perhaps a trace of a cluster,
or weights to start from. Files and code behind these names can change between
two sessions. The fingerprint detects that, so that no run mixes them unnoticed.
"""

from collections.abc import Mapping
import contextlib
import json
import pathlib
from typing import Any
import zlib

from selsync_jax import own_code
from selsync_jax.config import ConfigError
from selsync_jax.runs import files

FINGERPRINT = 'fingerprint.json'
_PROGRAM, _VERSIONS = 'model.program', 'model.versions.'
_CODE, _PYTHON = 'code.', 'code.python'


def write(workdir: pathlib.Path, found: Mapping[str, Any]) -> None:
  """Writes the fingerprint of a run, sealed by its checksum.

  Entries that only an earlier session found are kept.
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
  workdir: pathlib.Path,
  found: Mapping[str, Any],
  accept: bool,
  may_edit: bool = False,
) -> list[str]:
  """Lists differences from a run, such as `data.train.examples was 4, now 2`.

  It refuses differences that are not accepted, except in code that `may_edit`.
  A new run has no differences.

  Raises:
    ConfigError: if something differs that is not accepted.
    DamagedFile: if the fingerprint is damaged; then nothing can be compared.
  """
  changes = _changes(workdir, found)
  refused = [
    line
    for name, line in changes.items()
    if not (may_edit and name.startswith(_CODE))
  ]
  if refused and not accept:
    raise ConfigError(
      f'{workdir} holds a run with other data, code or initial weights: '
      f'{", ".join(refused)}; undo the change, or accept it with '
      '--accept_changes'
    )
  return [*changes.values()]


def _changes(workdir: pathlib.Path, found: Mapping[str, Any]) -> dict[str, str]:
  """Returns a line about each difference from a run, by name.

  It does not compare models traced by different versions of JAX or Flax, code
  parsed by different versions of Python, and entries that an earlier version
  did not record or this session did not read.
  """
  changes = {
    name: (old, new)
    for name, old, new in files.differences(_read(workdir), found)
    if old is not None and new is not None
  }
  skipped = {name for name in changes if name.startswith(_VERSIONS)}
  if skipped:
    skipped.add(_PROGRAM)
  if _PYTHON in changes:
    skipped.update(name for name in changes if name.startswith(_CODE))
  return {
    name: _line(name, *values)
    for name, values in changes.items()
    if name not in skipped
  }


def _line(name: str, old: Any, new: Any) -> str:
  """Says how a value differs, or for code, which names do."""
  if not name.startswith(_CODE):
    return f'{name} was {old}, now {new}'
  kind, names = name.split('.')[1], own_code.names_of_changes(old, new)
  return f'the code of its {kind} has changed: {", ".join(names)}'
