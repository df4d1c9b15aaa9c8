"""Train several methods with several seeds, and compare them.

Every run has its own process and folder; `--jobs` of them run at a time. A
finished run is not repeated, and an interrupted one resumes. Fields of the
config apply to all methods; fields for one method follow its name, as in
`--methods=bsp,selsync+sync.quorum=0.5`. `--sweep=workers=2,4,8` compares all
methods with each of these values; with several sweeps, with each combination.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
import pathlib
from typing import Any, TYPE_CHECKING

from selsync_jax.commands import config_file, flags
from selsync_jax.config import ConfigError, Count

if TYPE_CHECKING:
  from selsync_jax.commands.pool import Processes
  from selsync_jax.report.comparison import Comparison
  from selsync_jax.runs.history import Trial

METHODS = 'selsync,bsp,local_sgd,fedavg'


def parse(arguments: Sequence[str]) -> argparse.Namespace:
  """Parses the command line into the flags by name, and all `trials`."""
  line = flags.CommandLine('compare', config=config_file.DEFAULT)
  about = (
    'Names, perhaps with fields: selsync+sync.quorum=0.5; all: every method. '
    f'Default: {METHODS}; in a simulation, all.'
  )
  line.flag('methods', about, flags.names)
  line.switch(
    'simulate', 'Simulate the runs on the virtual config.virtual_cluster.'
  )
  about = 'Number of seeds, from config.seed on.'
  line.flag('seeds', about, flags.of(Count), '3')
  about = 'FIELD=VALUE,VALUE: values of a field, for all methods that have it.'
  line.flag('sweep', about, flags.sweep, action='append')
  about = (
    "Learning rates; 2x is twice the config's. Each method keeps the best on "
    'the validation split.'
  )
  line.flag('lrs', about, flags.rates)
  about = 'Runs at a time; they share the devices.'
  line.flag('jobs', about, flags.of(Count), '1')
  line.flag('out', 'Folder. Default: runs/compare-CONFIG.', flags.folder)
  about = (
    'Columns of the tables, in this order: of_bsp,seconds. '
    'Default: eleven columns; LaTeX leaves out the seconds of this machine.'
  )
  line.flag('columns', about, _columns)
  about = 'Method that the others are compared to. Default: bsp.'
  line.flag('baseline', about)
  options = line.parse(arguments)
  swept = [field for field, _ in options.sweep or []]
  if twice := [field for field in swept if swept.count(field) > 1]:
    raise ConfigError(f'--sweep={twice[0]}: give all its values at once')
  kind = ['compare', *['simulate'] * options.simulate]
  name = '-'.join([*kind, *config_file.names(options.file)])
  options.out = options.out or pathlib.Path('runs', name)
  methods = _methods(options)
  from selsync_jax.commands import trials  # Imports NumPy.

  options.trials = trials.list_trials(
    options.file,
    options.fields,
    methods,
    options.out,
    sweeps=dict(options.sweep or []),
    learning_rates=options.lrs or [],
    seeds=options.seeds,
    simulate=options.simulate,
  )
  if options.baseline and options.baseline not in methods:
    raise ConfigError(
      f'--baseline={options.baseline}: must be one of {", ".join(methods)}'
    )
  return options


def _columns(text: str) -> list[str]:
  """Reads the names of columns."""
  from selsync_jax.report import comparison_table  # Imports NumPy.

  names = flags.names(text)
  scores = 'validation_', 'test_'
  for name in names:
    if name not in comparison_table.COLUMNS and not name.startswith(scores):
      raise ValueError(
        f'{name!r} is not one of validation_METRIC, test_METRIC, '
        f'{", ".join(comparison_table.COLUMNS)}'
      )
  return names


def _methods(options: argparse.Namespace) -> list[str]:
  """Returns the methods to compare."""
  refuse_method(options.file)
  default = ['all'] if options.simulate else flags.names(METHODS)
  names = options.methods or default
  if names != ['all']:
    return names
  return able_methods(options.file, options.fields, options.simulate)


def able_methods(
  file: str, fields: Sequence[str], simulate: bool = False
) -> list[str]:
  """Returns all methods that accept a config; prints why others do not."""
  from selsync_jax.commands import trials

  config_file.register(file, fields)
  fields, able = [*(config_file.SIMULATED if simulate else ()), *fields], []
  for method in every_method(simulate):
    try:
      named = config_file.with_method(file, method)
      trials.check(config_file.settings(named, fields), simulate)
    except ConfigError as error:
      print(f'left out: {method}: {error}')
    else:
      able.append(method)
  return able


def refuse_method(file: str) -> None:
  """Raises `ConfigError` if `--config` names a method."""
  if not {*config_file.names(file)[1:]}.isdisjoint(every_method(True)):
    raise ConfigError(
      f'--config={file}: must name no method; --methods names them'
    )


def every_method(simulate: bool) -> list[str]:
  """Returns all methods; the asynchronous ones only for a simulation."""
  from selsync_jax import methods
  from selsync_jax.simulate.asynchronous import ASYNCHRONOUS

  return [*methods.METHODS, *(ASYNCHRONOUS if simulate else ())]


def main(
  arguments: Sequence[str], run: Callable[['Trial'], None] | None = None
) -> None:
  """Runs the trials that are not finished, and writes the comparison.

  `run` trains one trial, and leaves no summary if the trial diverges; by
  default it starts a process.
  """
  options = parse(arguments)
  from selsync_jax.commands import pool  # Imports NumPy, and rich.

  _run(options, pool.create_processes(options.jobs), run)


def compare(
  config: str,
  methods: Sequence[str],
  out: str | pathlib.Path,
  *,
  fields: Mapping[str, Any] | None = None,
  seeds: int = 3,
  jobs: int = 1,
  simulate: bool = False,
  columns: Sequence[str] = (),
  baseline: str | None = None,
) -> 'Comparison':
  """Compares methods as the command `compare` does, each run in a process.

  It prints the progress and the table. Finished runs are not repeated.

  Args:
    config: a config file, or the name of a built-in one, as in `--config`.
    methods: each `NAME`, or `NAME+FIELD=VALUE+...` with fields of its own.
    out: the folder of the runs and of the comparison's page.
    fields: values of fields of the config for all methods, by dotted name.
    seeds: the number of seeds; the config has the first.
    jobs: the number of runs at a time.
    simulate: whether to simulate the runs on the virtual cluster.
    columns: the columns of the tables, by name, as in `--columns`.
    baseline: the method that the others are compared to.

  Returns:
    The comparison: the sentence about the `best`, the path of its `page`, the
    table as `markdown`, and its numbers as `records`, see `comparison`.

  Raises:
    ConfigError: for a value that breaks its rule, before any work.
    RunError: if a run fails other than by diverging.
  """
  options = parse(
    [
      f'--config={config}',
      f'--methods={",".join(methods)}',
      f'--out={out}',
      f'--seeds={seeds}',
      f'--jobs={jobs}',
      f'--simulate={simulate}',
      *([f'--columns={",".join(columns)}'] if columns else []),
      *([f'--baseline={baseline}'] if baseline else []),
      *config_file.arguments(fields),
    ]
  )
  from selsync_jax.commands import pool  # Imports NumPy, and rich.

  return _run(options, pool.Processes(jobs))


def comparison(folder: str | pathlib.Path) -> list[dict[str, Any]]:
  """Returns the table of a finished comparison, a dictionary for each method.

  Numbers are means over seeds: `validation_accuracy`, `lssr`, `of_bsp`,
  `bytes_per_worker`, and all others of `summary.json`. `NAME_sd` is a standard
  deviation. `difference` is the validation score minus the baseline's, with a
  95% interval from `difference_low` to `difference_high`. A number that is not
  finite, or that needs more seeds, is `None`. This is useful for custom tables
  and figures: `pandas.DataFrame(ss.comparison(folder))`.

  Args:
    folder: the folder of the comparison.

  Raises:
    ConfigError: if the folder has no comparison.
  """
  from selsync_jax.runs import files

  path = pathlib.Path(folder, 'comparison.json')
  found = files.read(path, dict[str, Any]) or {}
  if 'records' not in found:
    raise ConfigError(
      f'{path}: holds no table; run the command of the comparison again'
    )
  return found['records']


def _run(
  options: argparse.Namespace,
  processes: 'Processes',
  run: Callable[['Trial'], None] | None = None,
) -> 'Comparison':
  """Runs the trials, writes and shows the comparison, and returns it."""
  from selsync_jax.runs import workdir  # Imports JAX.

  with workdir.claimed(options.out, '--out'):
    processes.run_all(options.trials, run)
  from selsync_jax.report import comparison as report  # Imports matplotlib.
  from selsync_jax.report import tables

  baseline = None
  if options.baseline:
    labels = {t.label for t in options.trials if t.spec == options.baseline}
    baseline = report.Baseline(options.baseline, labels)
  columns = options.columns or ()
  found = report.write(options.trials, options.out, columns, baseline)
  tables.show(found.shown)
  print(f'{found.best}.\n{found.page}')
  return found
