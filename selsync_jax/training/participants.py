"""The programs that take part in a run; the loop calls them at every step."""

import collections
from collections.abc import Callable, Iterator, Mapping
import pathlib
from typing import Any, ClassVar

import jax

from selsync_jax.cluster import processes
from selsync_jax.cluster.preemption import Agreement, Preemption
from selsync_jax.config import ConfigError, RunError
from selsync_jax.data.protocol import Batch, Data
from selsync_jax.devices.mappers import Function, Mapper
from selsync_jax.runs import checkpoints
from selsync_jax.training.settings import Settings
from selsync_jax.training.setup import draft, Setup


class Participants:
  """The programs that run the workers: here the processes of one JAX world.

  All of them take part in every step. A subclass is for islands, which join,
  leave, and may rest in some steps.

  Args:
    mapper: how the workers share the devices.
    agreement: agrees with the other programs on the step after which all stop;
      by default, with the processes that this one has joined.

  Attributes:
    preemption: the context in which a signal asks all programs to stop.
    are_islands: whether the programs are islands, which can keep their own pace
      and measure how long an average travels.
  """

  are_islands: ClassVar[bool] = False

  def __init__(self, mapper: Mapper, agreement: Agreement | None = None):
    self.mapper = mapper
    self.preemption = Preemption(agreement or processes.agreement())

  @property
  def prepares(self) -> bool:
    """Whether the others are training, and have not admitted this program."""
    return False

  @property
  def admits(self) -> bool:
    """Whether programs wait for `welcome`, to join or to leave.

    It is equal in all programs after the same step.
    """
    return False

  def check(self, settings: Settings) -> None:
    """Raises `ConfigError` for settings that need other participants."""
    if self.are_islands:
      return
    if settings.config.pace == 'free':
      raise ConfigError(
        "config.pace='free': is for islands; use selsync launch --islands"
      )
    if draft(settings).trigger.traits.needs_travel:
      raise ConfigError(
        'config.sync.link_share: is for islands, which measure how long an '
        'average travels'
      )

  def choose(self, found: Iterator[pathlib.Path]) -> checkpoints.Choice:
    """Chooses the checkpoint to resume from, see `checkpoints.Choose`."""
    return checkpoints.newest(found)

  def compare(self, setup: Setup) -> None:
    """Raises `RunError` if this program differs from most of the others.

    Step, data, or initial weights may differ although the configs are equal: a
    host may have other code or other files. Workers would diverge or hang.
    """
    if jax.process_count() > 1:
      refuse_odd(setup.identity, processes.digests(setup.identity))

  def batches(
    self,
    data: Data,
    start: int,
    stop: int,
    record: Mapping[str, Any] | None = None,
  ) -> Iterator[Batch]:
    """Yields what this program's workers read at steps `start` to `stop - 1`.

    If the run resumes, `record` is the record of its checkpoint.
    """
    del record
    return data.batches(self.mapper.local, start, stop)

  def train_step(self, setup: Setup) -> Function:
    """Returns the compiled training step, see `Setup.train_step`."""
    return setup.train_step()

  def divide(self, compute: Callable[[range, int], Any]) -> Any:
    """Divides an evaluation among the programs that take part now.

    `compute(workers, count)` evaluates the share of some of `count` workers,
    and combines it with the shares of other programs.
    """
    return compute(self.mapper.local, self.mapper.workers)

  def record(self, copied: bool = False) -> dict[str, Any]:
    """Returns these programs' fields of a checkpoint's record, for JSON.

    Programs that join start from the checkpoint if it is `copied` to them.
    """
    del copied
    return {}

  def stops_after(self, step: int) -> bool:
    """Returns whether to stop after this step; equal in all programs.

    Call it after every step.
    """
    return self.preemption.requested(step)

  def stops_after_last(self, step: int) -> bool:
    """Returns whether a signal has come since the run's last step.

    From then on, the previous handler receives signals: nothing is left to
    save.
    """
    self.preemption.close()
    return self.preemption.requested(step + 1)

  def welcome(self, step: int, pack: Callable[[], bytes]) -> None:
    """Admits programs that join, and releases programs that leave.

    All programs call it after the same `step`, when it `admits`. `pack()`
    returns the step's checkpoint, see `checkpoints.packed_state`.
    """


def refuse_odd(own: bytes, found: Mapping[str, bytes]) -> None:
  """Raises `RunError` if a program differs from most of the others.

  Args:
    own: this program's `Setup.identity`.
    found: the identity of every program, by name.
  """
  usual, count = collections.Counter(found.values()).most_common(1)[0]
  if own == usual and 2 * count > len(found):
    return
  one = next(name for name, digest in found.items() if digest == usual)
  odd = ', '.join(name for name in found if found[name] != usual)
  raise RunError(
    f'{odd} has other data or initial weights than {one}, or would run '
    'another training step; give all of them the same code, files and config'
  )
