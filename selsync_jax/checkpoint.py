"""Worker-stacked state in and out of a workdir, by orbax."""

import pathlib
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

FOLDER = 'checkpoints'


class Checkpoints:
  """The checkpoints of one run: every worker's state, and what was counted."""

  def __init__(self, workdir: pathlib.Path, keep: int):
    self._manager = ocp.CheckpointManager(
      (workdir / FOLDER).absolute(),
      options=ocp.CheckpointManagerOptions(max_to_keep=keep),
    )

  @property
  def latest(self) -> int | None:
    """The step of the newest complete checkpoint, or `None`."""
    return self._manager.latest_step()

  @property
  def latest_name(self) -> str:
    """The newest complete checkpoint, in words."""
    self._manager.wait_until_finished()
    return 'none' if self.latest is None else f'step {self.latest}'

  def save(self, step: int, state: Any, totals: dict[str, Any]) -> None:
    """Starts to save; returns when the state may be changed again."""
    self._manager.save(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(state),
        totals=ocp.args.JsonSave(totals),
      ),
    )

  def restore(self, like: Any) -> tuple[Any, dict[str, Any]]:
    """The newest checkpoint, as host arrays shaped as those of `like`."""
    template = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), like)
    restored = self._manager.restore(
      self.latest,
      args=ocp.args.Composite(
        state=ocp.args.StandardRestore(template),
        totals=ocp.args.JsonRestore(),
      ),
    )
    return restored['state'], restored['totals']

  def __enter__(self) -> 'Checkpoints':
    return self

  def __exit__(self, *exc: Any) -> None:
    """Waits for what is being saved."""
    self._manager.wait_until_finished()
    self._manager.close()
