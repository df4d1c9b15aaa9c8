"""A writer for MLflow.

MLflow's own environment variables choose the destination:
`MLFLOW_TRACKING_URI`, by default the folder `WORKDIR/mlruns`, and
`MLFLOW_EXPERIMENT_NAME`.
"""

from collections.abc import Mapping
import contextlib
import os
import pathlib
import time
from typing import Any

from mlflow import MlflowClient, MlflowException
from mlflow.entities import Metric, Param

from selsync_jax.config import flat
from selsync_jax.runs import files, records

# MLflow's limits on one request, from its REST API.
_METRICS, _PARAMS = 1000, 100
_PATIENCE = 10.0  # Seconds between requests, unless a batch fills up earlier.


class MlflowRun(contextlib.AbstractContextManager[Any]):
  """A run of MLflow, which keeps its ID when the training run resumes.

  Its parameters are the config's fields at the start. Steps that are repeated
  after a crash have two values. Rows are sent in batches; a session first sends
  rows of `metrics.jsonl` that the previous one did not send.
  """

  def __init__(
    self, workdir: pathlib.Path, step: int, config: Mapping[str, Any]
  ):
    self._client = MlflowClient(tracking_uri=_store(workdir))
    self._waiting: list[Metric] = []
    self._sent = time.monotonic()
    self._id = files.remembered(
      workdir / 'mlflow.id',
      lambda: self._create(workdir.resolve().name, config),
    )
    self._client.update_run(self._id, status='RUNNING')
    newest = self._client.get_run(self._id).data.metrics.get('step', 0)
    for row in records.read_metrics(workdir):
      if newest < row['step'] <= step:
        self.write(row)

  def _create(self, name: str, config: Mapping[str, Any]) -> str:
    run = self._client.create_run(self._experiment(), run_name=name)
    params = [Param(field, str(v)) for field, v in flat(config).items()]
    for first in range(0, len(params), _PARAMS):
      batch = params[first : first + _PARAMS]
      self._client.log_batch(run.info.run_id, params=batch)
    return run.info.run_id

  def _experiment(self) -> str:
    """Returns the ID of the experiment, which it creates if necessary."""
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME', 'selsync_jax')
    try:
      return self._client.create_experiment(name)
    except MlflowException:
      found = self._client.get_experiment_by_name(name)
      if found is None:
        raise
      return found.experiment_id

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds the numbers of one logged step, except those per worker."""
    now = round(time.time() * 1000)
    metrics = [
      Metric(name, value, now, row['step'])
      for name, value in records.numbers(row).items()
    ]
    if len(self._waiting) + len(metrics) > _METRICS:
      self._send()
    self._waiting += metrics
    if time.monotonic() - self._sent > _PATIENCE:
      self._send()

  def _send(self) -> None:
    batch, self._waiting = self._waiting, []
    self._sent = time.monotonic()
    self._client.log_batch(self._id, metrics=batch)

  def __exit__(self, kind: Any, *exc: Any) -> None:
    self._send()
    status = 'FINISHED' if kind is None else 'FAILED'
    self._client.set_terminated(self._id, status)


def _store(workdir: pathlib.Path) -> str:
  if uri := os.environ.get('MLFLOW_TRACKING_URI'):
    return uri
  # MLflow refuses a folder without this. A database would need more packages
  # than a client has.
  os.environ.setdefault('MLFLOW_ALLOW_FILE_STORE', 'true')
  return (workdir / 'mlruns').resolve().as_uri()
