"""Repeat a run of islands in one process, and compare parameters.

  selsync replay runs/two-islands

The folder has a run of each island. The logs record which islands took part in
each average; the rest is computed again. If an island had other parameters, the
command names the island and the first such step, and exits with code 1.
"""

from collections.abc import Sequence
import pathlib

from selsync_jax.commands import config_file, export, flags
from selsync_jax.fields import completed


def main(arguments: Sequence[str]) -> None:
  """Prints how many digests of each island have been compared."""
  line = flags.CommandLine('replay', positional='FOLDER')
  about = 'The config file of the run, if it registers its model or data.'
  line.flag('config', about)
  options = line.parse(arguments)
  folder = pathlib.Path(*options.positional)
  if options.config:
    config_file.load(options.config, ())
  if workdirs := [path.parent for path in folder.glob('*/config.json')]:
    export.start_jax(workdirs[0], max(map(_devices, workdirs)))
  from selsync_jax.islands import replay

  compared = replay.replay(folder)
  width = max(map(len, compared))
  for name, count in compared.items():
    print(f'{name:{width}}  {count} digests, all equal')


def _devices(workdir: pathlib.Path) -> int:
  """Returns the number of devices of an island."""
  from selsync_jax.runs import records

  config = completed(records.read_config(workdir) or {})
  return config['mesh.data'] * config['mesh.fsdp']
