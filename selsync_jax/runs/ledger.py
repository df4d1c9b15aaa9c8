"""The totals of a run: steps, synchronizations, samples, bytes, seconds."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from jaxtyping import Float
import numpy as np

from selsync_jax.config import RunError
from selsync_jax.models import token_weights
from selsync_jax.sync.traffic import Traffic

# The columns that parts of a method report.
REPORTED = {
  *('threshold', 'budget_threshold', 'overflow', 'selection'),
  *('senders', 'renewed', 'least_weighted', 'least_weight'),
}
# The columns of rows that are not metrics of a task.
COLUMNS = REPORTED | {
  *('step', 'epoch', 'samples', 'seconds', 'samples_per_second', 'lr'),
  *('relative_change', 'relative_changes', 'synced', 'skipped', 'lssr'),
  *('bytes_per_worker', 'virtual_seconds', 'staleness', 'count', 'unequal'),
}
_NOT_MEANS = {
  *('count', 'relative_change', 'synced', 'unequal', token_weights.WEIGHT)
}


class NonFiniteError(RunError):
  """An error that a worker's gradient was not finite."""


def refuse_unequal(leaf: int, names: Sequence[str], step: int) -> None:
  """Raises `RunError` if replicas differ after a step, first in this leaf.

  The leaf is -1 if the replicas are equal.
  """
  if leaf >= 0:
    raise RunError(
      f'step {step}: parameters that should be equal on all workers differ in '
      f'{names[leaf]}'
    )


@dataclasses.dataclass
class Totals:
  """The totals of a run so far; saved in every checkpoint."""

  steps: int = 0  # Optimizer steps.
  # The position in the data minus `steps`; 0 unless the number of workers
  # changed.
  shift: int = 0
  sync_steps: int = 0  # Steps that synchronized.
  skipped: int = 0  # Updates that were dropped because they were not finite.
  # By worker, the updates just dropped in a row; empty before the first step of
  # these workers.
  skips: list[int] = dataclasses.field(default_factory=list)
  samples: int = 0  # Examples that all workers together have read.
  sent: float = 0.0  # Bytes that one worker sent.
  sent_bsp: float = 0.0  # Bytes that it would have sent under BSP.
  injected: float = 0.0  # The part of `sent` for other workers' examples.
  # Wall-clock time of training, over all sessions, without evaluations and the
  # first step of a session, which compiles.
  seconds: float = 0.0
  # The state of a simulation's virtual clock, as JSON.
  clock: dict[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def position(self) -> int:
    """The position in the data, in steps of the current number of workers."""
    return self.steps + self.shift

  @property
  def lssr(self) -> float:
    """Local-to-synchronous step ratio (equation 4): local steps / steps."""
    return 1 - self.sync_steps / max(self.steps, 1)


def totals_at(row: Mapping[str, Any], traffic: Traffic) -> Totals:
  """Returns the totals of a run at a row that `Ledger.enter` has returned.

  The clock and `skips` are missing, because rows do not record them.
  """
  steps = row['step']
  return Totals(
    steps=steps,
    sync_steps=round((1 - row['lssr']) * steps),
    skipped=row['skipped'],
    samples=row['samples'],
    sent=row['bytes_per_worker'],
    sent_bsp=steps * traffic.bsp,
    seconds=row['seconds'],
  )


@dataclasses.dataclass(eq=False)
class Ledger:
  """The bookkeeping of a run: it turns metrics into totals and rows.

  It updates the totals in place. The run ends if a worker skips more than
  `max_skips` gradients in a row because they are not finite, or if replicas
  differ in one of the parameters `leaf_names`. Without `steps_per_epoch` or
  `learning_rates`, rows have no epoch or no learning rate.
  """

  totals: Totals
  traffic: Traffic
  steps_per_epoch: int | None
  learning_rates: Float[np.ndarray, 'steps'] | None
  max_skips: int
  leaf_names: Sequence[str] = ()
  # The samples and seconds after the first step, which compiles.
  _warm: tuple[int, float] | None = dataclasses.field(default=None, init=False)

  @property
  def files(self) -> dict[str, Any]:
    """Checksums of files that the counts depend on, for the fingerprint."""
    return {}

  @property
  def samples_per_second(self) -> float | None:
    """Throughput of this session, without its first step (compilation).

    `None` before a later step has been timed.
    """
    if self._warm is None:  # A session may only score.
      return None
    samples, seconds = self._warm
    elapsed = self.totals.seconds - seconds
    return (self.totals.samples - samples) / elapsed if elapsed else None

  def enter(
    self, metrics: Mapping[str, np.ndarray], seconds: float
  ) -> dict[str, Any]:
    """Counts one step; returns its row for `metrics.jsonl`.

    Each metric is an array [workers]. Its mean leaves out workers without an
    example that counts; every other value that is not finite shows in the row.
    `seconds` is the wall-clock time of training so far.
    """
    totals = self.totals
    if 'unequal' in metrics:
      leaf = int(metrics['unequal'][0])
      refuse_unequal(leaf, self.leaf_names, totals.steps + 1)
    counted = self.count(metrics)
    # NaN for a worker that rested.
    scored = np.asarray(token_weights.weight(metrics)) > 0
    position, per_epoch = totals.position, self.steps_per_epoch
    rates = self.learning_rates
    totals.samples += int(metrics['count'].sum())
    totals.seconds = seconds
    self._warm = self._warm or (totals.samples, totals.seconds)
    return {
      'step': totals.steps,
      **({'epoch': position / per_epoch} if per_epoch else {}),
      **{
        name: float(values[scored if scored.any() else ...].mean())
        for name, values in metrics.items()
        if name not in _NOT_MEANS
      },
      **counted,
      **({} if rates is None else {'lr': rates[position - 1].item()}),
      'samples': totals.samples,
      'bytes_per_worker': round(totals.sent),
      'seconds': totals.seconds,
      'samples_per_second': self.samples_per_second,
    }

  def count(self, metrics: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Counts the step, its traffic, and whether it synchronized.

    Returns the columns of the row about all three; see `enter`.
    """
    totals, changes = self.totals, {}
    if 'relative_change' in metrics:
      rested = metrics['count'] == 0 if 'count' in metrics else False
      changes = self._changes(metrics['relative_change'], rested)
    synced = bool(metrics['synced'][0])
    totals.steps += 1
    totals.sync_steps += synced
    traffic = self.traffic
    totals.sent += traffic.step + synced * traffic.sync + traffic.injected
    totals.sent += sum(
      nbytes * (float(metrics[scale][0]) - 1)
      for at, scale, nbytes in traffic.scaled
      if at == 'step' or synced
    )
    totals.sent_bsp += traffic.bsp
    totals.injected += traffic.injected
    return {
      **changes,
      'synced': synced,
      'skipped': totals.skipped,
      'lssr': totals.lssr,
    }

  def _changes(
    self, change: np.ndarray, rested: np.ndarray | bool
  ) -> dict[str, Any]:
    """Counts the gradients of a step that are not finite.

    Workers that `rested` had no gradient. Returns the columns of the row about
    relative changes.
    """
    totals, bad = self.totals, np.isnan(change) & np.logical_not(rested)
    before = totals.skips if len(totals.skips) == len(bad) else 0
    skips = np.where(bad, np.add(before, 1), np.where(rested, before, 0))
    if skips.max() > self.max_skips:
      row = f' for the {skips.max()}th step in a row; see max_skips'
      raise NonFiniteError(
        f'step {totals.steps + 1}: the gradient of worker '
        f'{skips.argmax()} is not finite{row if self.max_skips else ""}'
      )
    totals.skips = skips.tolist()
    totals.skipped += int(bad.sum())
    return {
      'relative_change': float(
        np.max(change, where=~np.isnan(change), initial=0)
      ),
      'relative_changes': change.tolist(),
    }

  def summary(self) -> dict[str, Any]:
    """Returns the totals as `summary.json` has them."""
    totals = self.totals
    injected = round(totals.injected)
    return {
      'steps': totals.steps,
      'sync_steps': totals.sync_steps,
      'local_steps': totals.steps - totals.sync_steps,
      'lssr': totals.lssr,
      'skipped': totals.skipped,
      'samples': totals.samples,
      'bytes_per_worker': round(totals.sent),
      'bytes_per_worker_bsp': round(totals.sent_bsp),
      'seconds': totals.seconds,
      'samples_per_second': self.samples_per_second,
      **({'injection_bytes': injected} if injected else {}),
    }
