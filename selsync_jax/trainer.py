"""A run from config to summary: step, record, evaluate, save."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import pathlib
from typing import Any

import jax
import ml_collections
import numpy as np

from selsync_jax import job as job_lib
from selsync_jax import pipeline
from selsync_jax import records
from selsync_jax import tasks
from selsync_jax import workers
from selsync_jax import writers
from selsync_jax.checkpoint import Checkpoints
from selsync_jax.ledger import Ledger
from selsync_jax.ledger import NonFiniteError
from selsync_jax.ledger import Totals
from selsync_jax.progress import Progress
from selsync_jax.selsync import consensus
from selsync_jax.strategies import parts

Row = dict[str, Any]


def train_and_evaluate(
  config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> dict[str, Any]:
  """Trains as the config says, and writes the run into `workdir`.

  Args:
    config: see configs/base.py.
    workdir: a folder, made if need be. A run that is there already goes on
      from its last checkpoint.

  Returns:
    The summary, as in `summary.json`.

  Raises:
    ConfigError: for a value that breaks its rule, before any work.
    NonFiniteError: naming step, worker and the last good checkpoint.
  """
  records.open_workdir(workdir)
  job = job_lib.prepare(config)
  workers.check_devices(config.workers, config.mapper)
  records.write_config(workdir, config)
  state, totals = _initial_state(job, config), Totals()
  shared = jax.tree.map(lambda x: x[0], state.shared)
  with Checkpoints(workdir, config.checkpoint.keep) as checkpoints:
    if checkpoints.latest is not None:
      state, counted = checkpoints.restore(state)
      totals = Totals(**counted)
    records.keep_metrics_until(workdir, totals.steps)
    ledger = Ledger(
      totals,
      parts.traffic(job.strategy, shared, config.workers),
      job.steps_per_epoch,
      job.learning_rate,
    )
    with _recorder(workdir, config, job, totals) as write:
      scores = _fit(job, config, state, ledger, checkpoints, write)
  bsp = parts.ring(parts.nbytes(shared['params']), config.workers)
  summary = {
    'method': config.sync.method,
    'workers': config.workers,
    'seed': config.seed,
    **ledger.summary(),
    'bytes_per_worker_bsp': round(totals.steps * bsp),
    **scores,
  }
  records.write_summary(workdir, summary)
  return summary


def _initial_state(
  job: job_lib.Job, config: ml_collections.ConfigDict
) -> workers.TrainState:
  """Worker-stacked state before the first step, on the host; all alike."""
  example = {name: array[:1] for name, array in job.train.items()}
  params, model_state = tasks.init(
    job.model, job.task, example, jax.random.key(config.seed)
  )
  state = workers.create_state(
    params, model_state, job.tx, job.strategy.averager
  )
  return workers.replicate(state, config.workers)


@contextlib.contextmanager
def _recorder(
  workdir: pathlib.Path,
  config: ml_collections.ConfigDict,
  job: job_lib.Job,
  totals: Totals,
) -> Iterator[Callable[[Row], None]]:
  """`write(row)`: to the writers if it is a logged step, and on show."""
  with contextlib.ExitStack() as stack:
    places = [stack.enter_context(w) for w in writers.writers(workdir)]
    progress = stack.enter_context(Progress(totals.steps, job.steps))

    def write(row):
      if row['step'] % config.log.every == 0 or 'test_loss' in row:
        for place in places:
          place.write(row)
      progress.show(row)

    yield write


def _evaluator(
  job: job_lib.Job, config: ml_collections.ConfigDict
) -> Callable[..., dict[str, float]]:
  """`evaluate(state, *splits)`: scores of the consensus on each split."""
  mean = workers.map_workers(consensus, config.mapper)
  totals = workers.map_workers(
    tasks.eval_totals(job.model, job.task), config.mapper
  )

  def score(shared, split):
    batches = pipeline.eval_batches(
      getattr(job, split),
      config.eval.batch_size,
      range(config.workers),
      config.workers,
    )
    each = [
      totals(shared['params'], shared['model_state'], batch)
      for batch in batches
    ]
    sums = jax.tree.map(lambda *x: np.sum(x), *jax.device_get(each))
    means = tasks.means(sums)
    return {f'{split}_{name}': float(mean) for name, mean in means.items()}

  def evaluate(state, *splits):
    shared = mean(state.shared)
    scores = {}
    for split in splits:
      scores |= score(shared, split)
    return scores

  return evaluate


def _fit(
  job: job_lib.Job,
  config: ml_collections.ConfigDict,
  state: workers.TrainState,
  ledger: Ledger,
  checkpoints: Checkpoints,
  write: Callable[[Row], None],
) -> dict[str, float]:
  """Trains to the last step; returns the scores of the consensus there."""
  train = workers.map_workers(
    workers.train_step(
      tasks.train_loss(job.model, job.task),
      job.tx,
      job.strategy.averager,
      config.seed,
    ),
    config.mapper,
    donate=(0,),
  )
  evaluate = _evaluator(job, config)
  first = ledger.totals.steps + 1
  batches = pipeline.train_batches(
    job.train,
    job.partition,
    config.batch_size,
    config.seed,
    range(config.workers),
    first - 1,
    job.steps,
  )
  eval_every = max(1, round(config.eval.every_epochs * job.steps_per_epoch))
  scores, late = {}, None
  state = workers.place(state, config.mapper)
  try:
    for step, batch in enumerate(batches, first):
      state, metrics = train(state, batch)
      if late is not None:  # The device is busy with this step meanwhile.
        write(ledger.enter(jax.device_get(late)))
      late = metrics
      evaluates = step % eval_every == 0 or step == job.steps
      saves = step % config.checkpoint.every == 0 or step == job.steps
      if evaluates or saves:
        row, late = ledger.enter(jax.device_get(late)), None
        if evaluates:
          both = ('test', 'validation') if step == job.steps else ('test',)
          scores = evaluate(state, *both)
        write(row | scores if evaluates else row)
        if saves:
          checkpoints.save(step, state, dataclasses.asdict(ledger.totals))
  except NonFiniteError as error:
    raise NonFiniteError(
      f'{error}; last good checkpoint: {checkpoints.latest_name}'
    ) from None
  return scores
