"""Train several methods with several seeds, and compare them.

Every run is a process with a folder of its own. A finished run is not repeated,
and an interrupted one resumes. Fields of the config hold for all methods;
fields for one method alone follow its name, as in
`--methods=bsp,selsync+sync.quorum=0.5`.
"""

from collections.abc import Callable, Sequence
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.commands import trials
from selsync_jax.config import ConfigError
from selsync_jax.devices import signals
from selsync_jax.runs.trial import Trial

METHODS = 'selsync,bsp,local_sgd,fedavg'
_TABLE = re.compile(
  r'(<!-- comparison\b.*?-->\n).*?(<!-- /comparison -->)', re.S
)


def run_process(trial: Trial) -> None:
  """Runs a trial in a process of its own; if it diverges there is no summary.

  Raises:
    SystemExit: with the exit code of a run that failed otherwise.
  """
  trial.workdir.mkdir(parents=True, exist_ok=True)
  log = trial.workdir / 'train.log'
  command = [sys.executable, '-m', 'selsync_jax', trial.command]
  with (
    log.open('w') as file,
    subprocess.Popen(
      [*command, *trial.flags, f'--workdir={trial.workdir}'],
      # The same modules as here, wherever this process found them.
      env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
      stdout=file,
      stderr=subprocess.STDOUT,
      # Ctrl-C in the terminal does not reach it twice.
      start_new_session=True,
    ) as process,
    signals.Handler(process.send_signal),
  ):
    status = process.wait()
  last = (log.read_text().splitlines() or ['nothing'])[-1]
  diverged = status == 1 and 'is not finite' in last
  if status and not diverged:
    print(f'{trial.workdir} failed: {last}', file=sys.stderr)
    sys.exit(status)


def _stop(number: int) -> None:
  del number
  reason = 'stopped by a signal; the same command continues the comparison'
  signals.stop(signals.RESUMABLE, reason)


def insert(table: str, path: pathlib.Path) -> None:
  """Replaces the table between the markers of a Markdown file.

  Raises:
    ConfigError: if the markers are missing, or there are several.
  """
  text, count = _TABLE.subn(rf'\g<1>{table}\g<2>', path.read_text())
  if count != 1:
    raise ConfigError(
      f'--into={path}: must hold <!-- comparison --> and <!-- /comparison --> '
      'once'
    )
  path.write_text(text)


class Options(NamedTuple):
  """The command line, read and checked.

  Attributes:
    trials: all runs of the comparison.
    out: its folder.
    into: Markdown file to insert the table into, or `None`.
  """

  trials: list[Trial]
  out: pathlib.Path
  into: pathlib.Path | None


def parse(arguments: Sequence[str]) -> Options:
  """Reads the command line.

  Raises:
    ConfigError: for a mistake in flags or config.
  """
  line = config_file.ConfigCommandLine('compare')
  methods = line.flag(
    'methods',
    flags.names,
    None,
    'Each may have fields of its own: selsync+sync.quorum=0.5; all: every '
    f'method. Default: {METHODS}; of a simulation, all.',
  )
  simulate = line.switch(
    'simulate', False, 'Simulate the runs on the virtual config.cluster.'
  )
  seeds = line.flag(
    'seeds', flags.whole(1), '3', 'Number of seeds, from config.seed on.'
  )
  deltas = line.flag(
    'deltas', flags.numbers, None, 'Deltas of the methods that have one.'
  )
  rates = line.flag(
    'lrs',
    flags.numbers,
    None,
    'Learning rates; each method keeps the best on the validation split.',
  )
  out = line.flag(
    'out', flags.folder, None, 'Folder. Default: runs/compare-CONFIG.'
  )
  into = line.flag(
    'into', pathlib.Path, None, 'Markdown file to insert the table into.'
  )
  line.parse(arguments)
  name = f'compare-{"simulate-" * simulate.value}{line.config_name}'
  folder = out.value or pathlib.Path('runs') / name
  grid = trials.list_trials(
    line.config.value,
    line.fields,
    _methods(methods.value, simulate.value, line),
    deltas.value or [],
    rates.value or [],
    seeds.value,
    folder,
    simulate=simulate.value,
  )
  return Options(grid, folder, into.value)


def _methods(
  names: list[str] | None,
  simulate: bool,
  line: config_file.ConfigCommandLine,
) -> list[str]:
  """The methods to compare; `all` stands for every one that can run."""
  names = names or (['all'] if simulate else flags.names(METHODS))
  if names != ['all']:
    return names
  line.load()  # The file may register methods of its own.
  return every_method(simulate)


def every_method(simulate: bool) -> list[str]:
  """The whole registry, and that of asynchronous methods for a simulation."""
  from selsync_jax import methods
  from selsync_jax.simulate import methods as asynchronous

  return [*methods.METHODS, *(asynchronous.METHODS if simulate else ())]


def main(
  arguments: Sequence[str],
  run: Callable[[Trial], None] = run_process,
) -> None:
  """Runs the trials that are not finished, and writes the comparison.

  Args:
    arguments: the command line.
    run: trains one trial, and leaves no summary if it diverges.
  """
  options = parse(arguments)
  signals.Handler(_stop).start()  # Until the process ends.
  for index, trial in enumerate(options.trials, 1):
    if not trial.is_done:
      print(f'{index}/{len(options.trials)}  {trial.workdir}', flush=True)
      run(trial)
  from selsync_jax.report import comparison  # Imports matplotlib.

  path = comparison.write(options.trials, options.out)
  table = (options.out / f'{comparison.NAME}.md').read_text()
  print(f'\n{table}\n{path}')
  if options.into:
    insert(table, options.into)
