"""A run from config to summary."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import pathlib
from typing import Any

import ml_collections

from selsync_jax.cluster import processes
from selsync_jax.config import RunError
from selsync_jax.devices import layout
from selsync_jax.report import label_counts
from selsync_jax.runs import files
from selsync_jax.runs import history
from selsync_jax.runs import output
from selsync_jax.runs import provenance
from selsync_jax.runs import records
from selsync_jax.runs import workdir as workdirs
from selsync_jax.runs import writers
from selsync_jax.runs.checkpoints import Checkpoints
from selsync_jax.runs.checkpoints import peek_record
from selsync_jax.runs.ledger import Ledger
from selsync_jax.runs.ledger import Totals
from selsync_jax.runs.weights import Keeper
from selsync_jax.sync import replicas
from selsync_jax.training import resize
from selsync_jax.training import same_program
from selsync_jax.training import start
from selsync_jax.training.course import Course
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.experiment import Experiment
from selsync_jax.training.milestones import Milestones
from selsync_jax.training.preemption import Preemption
from selsync_jax.training.profiling import Profile
from selsync_jax.training.progress import Progress
from selsync_jax.training.recorder import Recorder
from selsync_jax.training.recorder import Row
from selsync_jax.training.recorder import Scores
from selsync_jax.training.rules import check_config
from selsync_jax.training.silence import SilenceWarning

Rows = tuple[Callable[[Row], None], Callable[[], records.Seals]]
"""`write(row)`, and `seal()`, which is called before every checkpoint."""


def train_and_evaluate(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  *,
  restart: bool = False,
  profile: bool = False,
  patience: float = 60.0,
  create_course: Callable[[ml_collections.ConfigDict], Course] = Course,
) -> dict[str, Any]:
  """Trains as the config says, and writes the run into `workdir`.

  Args:
    config: see configs/base.py.
    workdir: a folder, created if need be. A run in it is resumed from its last
      checkpoint; a finished one is left as it is.
    restart: whether to move a run in `workdir` aside first.
    profile: whether to trace a few steps into `workdir/profile`.
    patience: seconds until every process must see process 0's files.
    create_course: from the config to the course of the run.

  Returns:
    The summary, as in `summary.json`.

  Raises:
    ConfigError: for a value that breaks its rule, before any work.
    Stopped: after SIGTERM or SIGINT, with everything saved.
    RunError: naming what went wrong, where, and the last good checkpoint.
  """
  check_config(config)
  record = None if restart else peek_record(workdir)
  fitted = resize.fit(config, record)
  _print_once('preparing data')
  course = create_course(fitted)
  course.experiment.mapper.check()
  same_program.check(course.experiment)
  saved = record and record['config']
  claim = workdirs.opened(workdir, config, restart, saved, patience)
  with claim, contextlib.ExitStack() as stack:  # Mistakes left no trace.
    output.note_losses(workdir)
    checkpoints = stack.enter_context(
      Checkpoints(workdir, config.checkpoint.keep, config.to_dict())
    )
    record = checkpoints.newest_record()
    if (intact := resize.fit(config, record)) != fitted:
      course = create_course(intact)  # The newest one was damaged.
    experiment = course.experiment
    totals = start.totals(experiment, record)
    _describe_data(experiment, workdir, record is None)
    sealed = records.seals(record)
    if summary := _outcome(workdir, totals, experiment.steps, sealed):
      return summary
    state = _state(course, checkpoints, totals, record)
    profiled = workdir if profile and processes.is_first() else None
    trace = stack.enter_context(Profile(profiled))
    ledger = course.ledger(totals)
    rows = _writing(course, workdir, totals, sealed)
    keeper = Keeper(workdir, totals.steps)
    scores = _train(course, state, rows, checkpoints, keeper, ledger, trace)
    return _summarize(config, workdir, ledger.summary() | scores)


def _summarize(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  results: dict[str, Any],
) -> dict[str, Any]:
  """Writes the summary: the results, and which run they are of."""
  summary = {
    'method': history.composition(config.sync.to_dict()),
    'workers': config.workers,
    'seed': config.seed,
    **results,
  }
  if processes.is_first():
    records.write_summary(workdir, summary)
  return summary


def _print_once(line: str | None) -> None:
  if line and processes.is_first():
    print(line)


def _outcome(
  workdir: pathlib.Path, totals: Totals, steps: int, sealed: records.Seals
) -> dict[str, Any] | None:
  """The outcome of a finished run; reports what is damaged."""
  try:
    summary = records.read_summary(workdir)
  except files.DamagedFile as error:
    _print_once(f'{error}; written again')
    return None
  if totals.position < steps or not summary:
    return None
  if processes.is_first():
    records.check_metrics(workdir, totals.steps, sealed)
  _print_once(f'{workdir} holds a finished run of {totals.steps} steps')
  return summary


def _describe_data(
  experiment: Experiment, workdir: pathlib.Path, is_new: bool
) -> None:
  """Writes facts about the data; a new run prints label counts per worker."""
  if processes.is_first():
    units = {'units': dict(experiment.task.units)}
    records.write_data(workdir, experiment.data.facts | units)
    if is_new and experiment.data.label_counts is not None:
      print(*label_counts.lines(experiment.data.label_counts), sep='\n')


def _state(
  course: Course,
  checkpoints: Checkpoints,
  totals: Totals,
  record: Mapping[str, Any] | None,
) -> Any:
  """The state in which this session starts; says where it comes from."""
  _print_once('compiling')
  state, line = course.state(checkpoints, totals, record)
  _print_once(line)
  return state


def _train(
  course: Course,
  state: Any,
  writing: contextlib.AbstractContextManager[Rows],
  checkpoints: Checkpoints,
  keeper: Keeper,
  ledger: Ledger,
  trace: Profile,
) -> Scores:
  """Takes the steps that are left; returns the scores of the last one.

  Only here is the test split read, and no row of `metrics.jsonl` has it: a
  killed run that resumes scores the same parameters again.
  """
  experiment = course.experiment
  workers = processes.local_workers(experiment.workers)
  evaluator = Evaluator(experiment, workers)
  names = replicas.leaf_names(experiment.shapes.params)
  with (
    _naming_checkpoint(checkpoints),
    writing as (write, seal),
    Preemption() as preemption,
  ):
    recorder = Recorder(
      ledger,
      experiment.workers,
      names,
      experiment.intervals.fetch,
      write,
      seal,
    )
    milestones = Milestones(
      course, recorder, evaluator, checkpoints, keeper, preemption
    )
    state = course.run(state, recorder, workers, milestones, trace.step)
    mean = evaluator.consensus(course.shared(state))
    validation = milestones.scores or evaluator.scores(mean, 'validation')
    return validation | evaluator.scores(mean, 'test')


@contextlib.contextmanager
def _writing(
  course: Course,
  workdir: pathlib.Path,
  totals: Totals,
  sealed: records.Seals,
) -> Iterator[Rows]:
  """Yields `write(row)`, which shows every row and writes the logged ones.

  Also yields `seal()`, see `records.MetricsFile`.
  """
  if not processes.is_first():
    yield lambda row: None, lambda: records.NO_ROWS
    return
  provenance.append(workdir, totals.steps, layout.describe())
  experiment, config = course.experiment, course.config
  steps = experiment.steps - totals.shift
  silence = SilenceWarning(experiment.strategy.trigger)
  with (
    writers.Writers(workdir, config.to_dict(), totals.steps, sealed) as opened,
    Progress(totals.steps, steps, config.log.seconds) as progress,
  ):
    # Of a finished run that was made longer, or lost its newest checkpoint.
    (workdir / records.SUMMARY).unlink(missing_ok=True)

    def write(row):
      is_logged = row['step'] % experiment.intervals.log == 0
      if is_logged or any(map(history.is_score, row)):
        opened.write(row)
      progress.show(row)
      silence.watch(row)

    yield write, opened.seal


@contextlib.contextmanager
def _naming_checkpoint(checkpoints: Checkpoints) -> Iterator[None]:
  """Appends the last good checkpoint to the error message."""
  try:
    yield
  except (RunError, OSError) as error:
    reason = str(error)
    if isinstance(error, OSError) and error.filename:
      reason = f'{error.filename}: {error.strerror}'
    line = f'{reason}; last good checkpoint: {checkpoints.newest}'
    raise RunError(line) from error
