"""Trains a run, from config to summary."""

from collections.abc import Callable
import contextlib
import pathlib
from typing import Any

import jax
import numpy as np

from selsync_jax.report import label_counts
from selsync_jax.runs import checkpoints, records
from selsync_jax.runs.ledger import Ledger, Totals
from selsync_jax.runs.store import Store
from selsync_jax.training import start, warnings
from selsync_jax.training.hooks import Hooks
from selsync_jax.training.participants import Participants
from selsync_jax.training.problem import Problem
from selsync_jax.training.programs import Programs
from selsync_jax.training.settings import check, Config
from selsync_jax.training.setup import choose_mapper, Setup
from selsync_jax.training.warnings import OverflowWarning, SilenceWarning


def train_and_evaluate(
  config: Config,
  workdir: pathlib.Path,
  *,
  restart: bool = False,
  accept_changes: bool = False,
  profile: bool = False,
  patience: float = 60.0,
  participants: Participants | None = None,
  create_ledger: Callable[[Setup, Totals], Ledger] = Setup.ledger,
) -> dict[str, Any]:
  """Trains as the config says, and writes the run into `workdir`.

  Args:
    config: a config that started from configs/base.py, or the settings that
      `settings.check` returned for it.
    workdir: a folder, created if need be. A run in it is resumed from its last
      checkpoint; a finished one is left as it is.
    restart: whether to move a run in `workdir` aside first.
    accept_changes: whether to resume although data or model have changed.
    profile: whether to trace a few steps into `workdir/profile`.
    patience: seconds until every process must see process 0's files.
    participants: the programs that run the workers; by default the processes of
      this JAX world, with the mapper that the config names.
    create_ledger: a function that makes the ledger, which counts the steps.

  Returns:
    The summary, as in `summary.json`.

  Raises:
    ConfigError: for a value that breaks its rule, before any work.
    Stopped: after SIGTERM or SIGINT, with everything saved.
    RunError: if the run fails; names the last good checkpoint.
  """
  settings = check(config)
  if participants is None:
    participants = Participants(choose_mapper(settings.config))
  participants.check(settings)
  programs = None
  if participants.prepares:
    print('preparing, while the others train')
    record = None if restart else checkpoints.peek_record(workdir)
    # The others send a checkpoint, so this program reads no other weights.
    adapted = start.adapt(settings._replace(source=None), record)
    programs = Programs(adapted, participants)
    programs.warm_up()
  store = Store(
    workdir,
    settings.config.to_dict(),
    restart=restart,
    patience=patience,
    choose=participants.choose,
  )
  settings = start.adapt(settings, store.record)
  if not programs or programs.settings != settings:
    store.say('preparing data')
    programs = Programs(settings, participants)
  setup, step, evaluator = programs.setup, programs.step, programs.evaluator
  problem, strategy, plan = setup.problem, setup.strategy, setup.plan
  totals = start.totals(problem, plan, store.record)
  participants.compare(setup)
  ledger = create_ledger(setup, totals)
  found = problem.fingerprint | ledger.files
  for change in store.identify(found, accept_changes):
    store.say(change)
  with store:  # Errors until here have written nothing.
    summary = store.outcome(totals, problem.steps)
    if totals.position >= problem.steps:
      # A program without a summary needs the others to score.
      own = np.array([summary is not None] * len(plan.mapper.local))
      summary = summary if plan.mapper.gather(own).all() else None
    if summary:
      return summary
    describe_data(store, problem)
    for line in warnings.of_parts(strategy, setup.shapes.model_state):
      store.say(line)
    state = start.state(setup, store, totals)
    watchers = SilenceWarning(strategy.trigger), OverflowWarning()
    watches = [watcher.watch for watcher in watchers]
    first = totals.position
    batches = participants.batches(
      problem.data, first, problem.steps, store.record
    )
    with (
      Hooks(
        store, problem, plan, ledger, evaluator, participants, watches
      ) as run,
      _Profile(workdir if profile and store.is_first else None) as trace,
    ):
      state = run.rehearse(state)
      for position, batch in enumerate(batches, first + 1):
        with trace.step(position):
          state, metrics = step(state, batch)
        now = run.record(position, metrics)
        if now.evaluates:
          run.evaluate(
            now, setup.landed(state) if now.is_last else state.scored
          )
        if now.saves:
          run.save(state)
        run.stop(now)
        run.welcome(now, state)
      scores = run.final_scores(setup.landed(state))
    return store.finish(ledger.summary() | scores)


def describe_data(store: Store, problem: Problem) -> None:
  """Writes facts about the data; a new run prints what it starts from.

  These are label counts per worker, and weights that are not initialized.
  """
  data, task = problem.data, problem.task
  about = {'units': dict(task.units), 'goal': task.goal._asdict()}
  store.event(records.DATA, data.facts | about)
  if store.record is None and data.label_counts is not None:
    store.say('\n'.join(label_counts.lines(data.label_counts)))
  if store.record is None and problem.source:
    store.say(problem.given.line)


class _Profile(contextlib.AbstractContextManager[Any]):
  """A context that traces a few steps of a session into `WORKDIR/profile`.

  TensorBoard's profile plugin, XProf and Perfetto read the trace.
  """

  SKIPPED, COUNT = 10, 5  # The steps before the trace, and in it.

  def __init__(self, workdir: pathlib.Path | None):
    self._workdir = workdir  # `None` traces nothing.
    self._steps = 0

  def __exit__(self, *exc: Any) -> None:
    if self._workdir and 0 < self._steps - self.SKIPPED <= self.COUNT:
      jax.profiler.stop_trace()

  def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
    """Returns a context to enter around every step."""
    if self._workdir is None:
      return contextlib.nullcontext()
    if self._steps == self.SKIPPED:
      jax.profiler.start_trace(self._workdir / 'profile')
    if self._steps == self.SKIPPED + self.COUNT:
      jax.profiler.stop_trace()
    self._steps += 1
    return jax.profiler.StepTraceAnnotation('train', step_num=number)
