"""Entries of a comparison: a method at one learning rate, with its seeds."""

from collections.abc import Sequence
import math
import statistics
from typing import NamedTuple

from selsync_jax.config import RunError
from selsync_jax.runs import history
from selsync_jax.runs.history import Run
from selsync_jax.runs.history import Trial


class Entry(NamedTuple):
  """A method at one learning rate."""

  label: str  # The method and its settings.
  learning_rate: float  # The schedule's peak.
  runs: dict[int, Run]  # The finished runs by seed.
  diverged: list[int]  # The seeds whose gradients became infinite.

  @property
  def method(self) -> str:
    """The method alone."""
    return self.label.split(', ')[0]

  def values(self, field: str) -> dict[int, float]:
    """Returns a field of the summaries by seed; NaN if it was not finite."""
    outcomes = {seed: run.outcome for seed, run in self.runs.items()}
    return {
      seed: math.nan if outcome[field] is None else outcome[field]
      for seed, outcome in outcomes.items()
      if field in outcome
    }

  def mean(self, field: str) -> float:
    """Returns the mean of a field of the summary over seeds."""
    return statistics.fmean(self.values(field).values())

  @property
  def share_of_bsp(self) -> float:
    """The mean over seeds of the traffic, as a share of BSP's."""
    outcomes = [run.outcome for run in self.runs.values()]
    return statistics.fmean(map(history.share_of_bsp, outcomes))

  @property
  def rank(self) -> tuple[int, float, float]:
    """The criterion for the learning rate; higher is better."""
    runs = self.runs.values()
    score, loss = (
      statistics.fmean(run.rank(metric) for run in runs) if runs else -math.inf
      for metric in (None, 'loss')
    )
    return -len(self.diverged), score, loss


def read_entries(trials: Sequence[Trial]) -> list[Entry]:
  """Returns every method at every learning rate of its grid."""
  entries = {}
  for trial in trials:
    key = trial.label, trial.learning_rate
    entry = entries.setdefault(key, Entry(*key, {}, []))
    if not trial.is_done:
      entry.diverged.append(trial.seed)
      continue
    run = entry.runs[trial.seed] = history.read(trial.workdir, trial.label)
    if run.summary is None:
      raise RunError(
        f'{trial.workdir}: the summary is of fewer steps than the rows; '
        "the run's own command finishes it"
      )
  return list(entries.values())


def choose_rates(entries: Sequence[Entry]) -> list[Entry]:
  """Returns every method at the learning rate with the highest rank."""
  labels = dict.fromkeys(entry.label for entry in entries)
  return [
    max((e for e in entries if e.label == label), key=lambda e: e.rank)
    for label in labels
  ]


def metric_of(entries: Sequence[Entry]) -> str:
  """Returns the metric by which these runs are compared."""
  runs = (run for entry in entries for run in entry.runs.values())
  names = (run.validated for run in runs)
  return next((main for main, *_ in filter(None, names)), 'loss')
