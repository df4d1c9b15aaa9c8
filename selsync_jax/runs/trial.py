"""One run of a comparison."""

import contextlib
import pathlib
from typing import NamedTuple

import ml_collections

from selsync_jax.runs import files
from selsync_jax.runs import records


class Trial(NamedTuple):
  """A method with one learning rate and one seed."""

  label: str  # The method and its settings.
  learning_rate: float  # The schedule's peak.
  seed: int
  workdir: pathlib.Path
  flags: list[str]  # The arguments of the command, without the workdir.
  config: ml_collections.ConfigDict  # The result of the flags.
  command: str = 'train'  # Or `simulate`.

  @property
  def is_done(self) -> bool:
    """Whether the run is finished, with a readable summary."""
    with contextlib.suppress(files.DamagedFile):
      return records.read_summary(self.workdir) is not None
    return False

  @property
  def share_done(self) -> float:
    """The share of the run that is done, in [0, 1], by its last logged step."""
    row = records.last_row(self.workdir)
    if row is None:
      return 0.0
    config = self.config
    steps, epochs = config.steps, config.epochs
    share = row['step'] / steps if steps else row['epoch'] / epochs
    return min(share, 1.0)
