"""Warnings about settings that spoil a run without an error."""

from collections.abc import Iterator, Mapping
import math
import sys
from typing import Any

from selsync_jax.sync import flat
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.transformation import Trigger


def of_parts(strategy: Strategy, model_state: Any) -> Iterator[str]:
  """Yields a line for a part that makes another useless."""
  reducer, averager = strategy.reducer, strategy.averager
  others = strategy.averages_model_state and flat.floats(model_state)
  averages = averager.averages and not averager.remembers
  if reducer.traits.every_step and averages and not others:
    yield (
      f'reducer {reducer} keeps parameters equal at every step, so averager '
      f'{averager} sends equal ones and changes nothing; leave one of them out'
    )


class SilenceWarning:
  """A warning, printed once, if a threshold hardly ever causes an average.

  Nothing else shows this mistake: the run continues, and its workers train
  almost alone. A trigger without a fixed threshold on the gradient's change, or
  with an infinite one, gets no warning.
  """

  PATIENCE = 100  # Possible synchronizations before the check.
  MOST = 0.99  # The share of them that may be left out without a warning.

  def __init__(self, trigger: Trigger):
    traits = trigger.traits
    threshold = traits.threshold if traits.meter else None
    self._is_due = threshold is not None and math.isfinite(threshold)
    self._spacing = traits.spacing

  def watch(self, row: Mapping[str, Any]) -> None:
    """Takes the row of a step, as in `metrics.jsonl`."""
    possible = row['step'] // self._spacing
    if not self._is_due or possible < self.PATIENCE:
      return
    steps, lssr = row['step'], row['lssr']
    syncs = round((1 - lssr) * steps)
    if syncs <= 1 or 1 - syncs / possible > self.MOST:
      self._is_due = False
      print(
        f'step {steps}: {syncs} of {steps} steps synchronized (LSSR '
        f'{lssr:.3f}), so the workers train almost alone; the page of '
        'the run shows LSSR for each delta, and --config.sync.delta=None lets '
        'a budget find its own',
        file=sys.stderr,
      )


class OverflowWarning:
  """A warning, printed once, if too few selected elements fit into messages.

  The others wait in the error memory and join the next selection, so the run
  may diverge.
  """

  PATIENCE = 100  # Consecutive steps.
  MOST = 0.5  # The share of a selection that is held back without a warning.

  def __init__(self):
    self._steps = 0  # Consecutive ones above `MOST`.
    self._is_due = True

  def watch(self, row: Mapping[str, Any]) -> None:
    """Takes the row of a step, as in `metrics.jsonl`."""
    share = row.get('overflow', 0.0)
    self._steps = self._steps + 1 if share > self.MOST else 0
    if self._is_due and self._steps == self.PATIENCE:
      self._is_due = False
      print(
        f'step {row["step"]}: {share:.0%} of the selected elements did not fit '
        f'into the messages, and more than {self.MOST:.0%} at each of the last '
        f'{self.PATIENCE} steps; raise capacity, or leave it out',
        file=sys.stderr,
      )


class NotFiniteWarning:
  """A warning, printed once for each kind of loss, if it is not finite.

  `on_nonfinite` looks only at gradients, which may still be finite.
  """

  def __init__(self):
    self._told: set[str] = set()

  def watch(self, row: Mapping[str, Any]) -> None:
    """Takes the row of a step, as in `metrics.jsonl`, or final scores."""
    for name in ('loss', 'validation_loss', 'test_loss'):
      if name not in self._told and not math.isfinite(row.get(name, 0)):
        self._told.add(name)
        what = name.replace('_', ' ')
        where = ' on a worker' if name == 'loss' else ''
        print(
          f'step {row["step"]}: {what} is {row[name]}{where}; check the '
          'data, the learning rate and the task',
          file=sys.stderr,
        )
