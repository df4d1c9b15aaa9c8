"""A writer for Weights & Biases.

W&B's own environment variables choose the destination: `WANDB_PROJECT`,
`WANDB_ENTITY`, `WANDB_MODE=offline`.
"""

from collections.abc import Mapping
import contextlib
import os
import pathlib
import secrets
from typing import Any

import wandb

from selsync_jax.runs import files, records


class WandbRun(contextlib.AbstractContextManager[Any]):
  """A run of W&B, which keeps its ID when the training run resumes.

  W&B requires its own steps to increase. `step` is therefore a metric, and the
  horizontal axis of all others. Steps that are repeated after a crash have two
  points.
  """

  def __init__(
    self, workdir: pathlib.Path, step: int, config: Mapping[str, Any]
  ):
    del step
    self._run = wandb.init(
      project=os.environ.get('WANDB_PROJECT', 'selsync_jax'),
      id=files.remembered(workdir / 'wandb.id', lambda: secrets.token_hex(4)),
      resume='allow',
      name=workdir.resolve().name,
      dir=str(workdir),
      config=dict(config),
      allow_val_change=True,  # Some fields may change when a run resumes.
      settings=wandb.Settings(console='off'),  # It would record the bar.
    )
    self._run.define_metric('*', step_metric='step')

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds the numbers of one logged step, except those per worker."""
    self._run.log(records.numbers(row))

  def __exit__(self, kind: Any, *exc: Any) -> None:
    self._run.finish(exit_code=0 if kind is None else 1)
