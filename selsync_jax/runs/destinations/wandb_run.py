"""A run of Weights & Biases.

W&B's own environment variables say where it goes: `WANDB_PROJECT`,
`WANDB_ENTITY`, `WANDB_MODE=offline`.
"""

from collections.abc import Mapping
import os
import pathlib
import secrets
from typing import Any

import wandb

from selsync_jax.runs import records
from selsync_jax.runs.destinations import run_id

_ID = 'wandb.id'


class WandbRun:
  """A run of W&B; a run that resumes adds to it, under the same ID.

  W&B numbers the calls of `log` and refuses a number twice. Our own `step` is
  therefore a metric, and the horizontal axis of all others. Steps that are
  taken again have two points, at the same place.
  """

  def __init__(
    self, workdir: pathlib.Path, step: int, config: Mapping[str, Any]
  ):
    del step
    self._run = wandb.init(
      project=os.environ.get('WANDB_PROJECT', 'selsync_jax'),
      id=run_id.remembered(workdir / _ID, lambda: secrets.token_hex(4)),
      resume='allow',
      name=workdir.resolve().name,
      dir=str(workdir),
      config=dict(config),
      allow_val_change=True,  # A run may resume with other fields.
      settings=wandb.Settings(console='off'),  # The screen has a moving bar.
    )
    self._run.define_metric('*', step_metric='step')

  def write(self, row: Mapping[str, Any]) -> None:
    """Adds the numbers of one logged step, except those per worker."""
    self._run.log(records.numbers(row))

  def __enter__(self) -> 'WandbRun':
    return self

  def __exit__(self, kind: Any, *exc: Any) -> None:
    self._run.finish(exit_code=0 if kind is None else 1)
