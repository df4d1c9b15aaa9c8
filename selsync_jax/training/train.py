"""Trains a run, from config to summary."""

from collections.abc import Callable
import pathlib
from typing import Any

import numpy as np

from selsync_jax.runs import records
from selsync_jax.runs.ledger import Ledger, Totals
from selsync_jax.runs.store import Store
from selsync_jax.training import start, warnings
from selsync_jax.training.hooks import Hooks
from selsync_jax.training.participants import Participants
from selsync_jax.training.problem import Problem
from selsync_jax.training.profile import Profile
from selsync_jax.training.programs import Programs
from selsync_jax.training.settings import check, Config
from selsync_jax.training.setup import Setup
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
    participants = Participants(settings.mapper)
  participants.check(settings)
  programs = None
  if participants.prepares:
    print('preparing, while the others train')
    # The others send a checkpoint, so this program reads no other weights.
    programs = Programs(settings._replace(source=None), participants)
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
  problem, strategy, mapper = setup.problem, setup.strategy, setup.mapper
  totals = start.totals(problem, mapper, store.record)
  participants.compare(setup)
  ledger = create_ledger(setup, totals)
  found = problem.fingerprint | ledger.files
  for change in store.identify(found, accept_changes):
    store.say(change)
  with store:  # Errors until here have written nothing.
    summary = store.outcome(totals, problem.steps)
    if totals.position >= problem.steps:
      # A program without a summary needs the others to score.
      own = np.array([summary is not None] * len(mapper.local))
      summary = summary if mapper.gather(own).all() else None
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
        store, problem, setup.config, ledger, evaluator, participants, watches
      ) as run,
      Profile(workdir if profile and store.is_first else None) as trace,
    ):
      run.rehearse(state)
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
      results = run.results(setup.landed(state))
    return store.finish(results)


def describe_data(store: Store, problem: Problem) -> None:
  """Writes facts about the data; prints the source of a new run's weights."""
  data, task = problem.data, problem.task
  about = {'units': dict(task.units), 'goal': task.goal._asdict()}
  store.event(records.DATA, data.facts | about)
  if store.record is None and problem.source:
    store.say(problem.given.line)
