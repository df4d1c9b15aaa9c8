"""Write a page with tables and figures of one or more runs."""

from collections.abc import Sequence
import os
import pathlib

from selsync_jax.commands import flags
from selsync_jax.config import ConfigError


def main(arguments: Sequence[str]) -> None:
  """Writes the page of the runs on the command line."""
  line = flags.CommandLine('report', positional='WORKDIR ...')
  about = 'Folder of the page. Default: the workdir, if there is only one.'
  line.flag('out', about, flags.folder)
  about = 'Log of a coordinator, `selsync meet --log`, for a figure.'
  line.flag('islands', about, pathlib.Path)
  options = line.parse(arguments)
  workdirs = [pathlib.Path(name) for name in options.positional]
  if not workdirs:
    raise ConfigError('WORKDIR is missing')
  if options.out is None and len(workdirs) > 1:
    raise ConfigError('several workdirs: give --out=FOLDER')
  for workdir in workdirs:
    path = os.path.realpath(workdir)  # Figures name a run by its last part.
    try:
      (path if len(workdirs) > 1 else os.path.basename(path)).encode()
    except UnicodeEncodeError as error:
      rule = 'its name must be UTF-8, for the figures; rename it'
      raise ConfigError(f'{workdir}: {rule}') from error
  from selsync_jax.islands import journal, plot
  from selsync_jax.report import run_page  # Imports matplotlib.

  try:
    events = journal.read(options.islands) if options.islands else []
  except OSError as error:
    line = f'--islands={options.islands}: {error.strerror}'
    raise ConfigError(line) from error
  if options.islands and not events:
    raise ConfigError(f'--islands={options.islands}: holds no events')
  out, more = options.out or workdirs[0], []
  if events:
    more.append(plot.plot(events))
  print(run_page.write(workdirs, out, more, columns=True))
