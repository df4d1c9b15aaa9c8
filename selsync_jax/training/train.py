"""Trains a run, from config to summary."""

from collections.abc import Callable
import math
import pathlib
from typing import Any

from selsync_jax.cluster import processes
from selsync_jax.report import label_counts
from selsync_jax.runs.ledger import Ledger
from selsync_jax.runs.ledger import Totals
from selsync_jax.runs.session import Session
from selsync_jax.training import recorder
from selsync_jax.training import resize
from selsync_jax.training import same_program
from selsync_jax.training import start
from selsync_jax.training.evaluation import Evaluator
from selsync_jax.training.hooks import hooks
from selsync_jax.training.problem import Problem
from selsync_jax.training.profiling import Profile
from selsync_jax.training.settings import check
from selsync_jax.training.settings import Config
from selsync_jax.training.setup import create_setup
from selsync_jax.training.setup import Setup
from selsync_jax.training.silence import SilenceWarning


def train_and_evaluate(
  config: Config,
  workdir: pathlib.Path,
  *,
  restart: bool = False,
  accept_changes: bool = False,
  profile: bool = False,
  patience: float = 60.0,
  create_ledger: Callable[[Setup, Totals], Ledger] = recorder.create_ledger,
) -> dict[str, Any]:
  """Trains as the config says, and writes the run into `workdir`.

  Args:
    config: a config that started from configs/base.py, or the settings that
      `settings.check` returned for it.
    workdir: a folder, created if need be. A run in it is resumed from its last
      checkpoint; a finished one is left as it is.
    restart: whether to move a run in `workdir` aside first.
    accept_changes: whether to resume though data or model have changed.
    profile: whether to trace a few steps into `workdir/profile`.
    patience: seconds until every process must see process 0's files.
    create_ledger: a function that makes the ledger, which counts the steps.

  Returns:
    The summary, as in `summary.json`.

  Raises:
    ConfigError: for a value that breaks its rule, before any work.
    Stopped: after SIGTERM or SIGINT, with everything saved.
    RunError: if the run fails; names the last good checkpoint.
  """
  settings = check(config)
  session = Session(
    workdir,
    settings.config.to_dict(),
    restart=restart,
    accept_changes=accept_changes,
    patience=patience,
  )
  session.say('preparing data')
  setup = create_setup(resize.fit(settings, session.record))
  problem, strategy, plan = setup.problem, setup.strategy, setup.plan
  plan.mapper.check()
  start.check_size(problem, math.prod(settings.config.mesh.values()))
  same_program.check(setup)
  totals = start.totals(problem, plan, session.record)
  ledger = create_ledger(setup, totals)
  session.identify(problem.fingerprint | ledger.files)
  with session:  # Errors until here have written nothing.
    if summary := session.outcome(totals, problem.steps):
      return summary
    describe_data(session, problem)
    state = start.state(setup, session, totals)
    evaluator = Evaluator(problem, plan.mapper, strategy.averages_model_state)
    watch = SilenceWarning(strategy.trigger).watch
    workers = processes.local_workers(plan.workers)
    first = totals.position
    batches = problem.data.batches(workers, first, problem.steps)
    step = setup.train_step()
    with (
      hooks(session, problem, plan, ledger, evaluator, watch) as run,
      Profile(workdir if profile and session.is_first else None) as trace,
    ):
      run.rehearse(state)
      for position, batch in enumerate(batches, first + 1):
        with trace.step(position):
          state, metrics = step(state, batch)
        now = run.record(position, metrics)
        if now.evaluates:
          run.evaluate(now, state.shared)
        if now.saves:
          run.save(state)
        run.stop(now)
      scores = run.final_scores(state.shared)
    return session.finish(ledger.summary() | scores)


def describe_data(session: Session, problem: Problem) -> None:
  """Writes facts about the data; a new run prints label counts per worker."""
  data = problem.data
  task = problem.task
  about = {'units': dict(task.units), 'goal': task.goal._asdict()}
  session.write_data(data.facts | about)
  if session.record is None and data.label_counts is not None:
    session.say('\n'.join(label_counts.lines(data.label_counts)))
