"""The totals of a run, across its sessions."""

import dataclasses
import json

import numpy as np
import pytest

from selsync_jax.runs.ledger import Ledger, NonFiniteError, Totals
from selsync_jax.sync import traffic
from selsync_jax.sync.traffic import Collective, Traffic


def resumed(totals):
  """The ledger of the next session."""
  record = json.loads(json.dumps(dataclasses.asdict(totals)))
  rates, sent = np.full(40, 0.1), Traffic(step=4, sync=100, bsp=90, injected=0)
  return Ledger(Totals(**record), sent, 10, rates, max_skips=20)


def test_messages_count_with_the_length_that_a_metric_reports():
  collectives = (
    Collective('all_gather', 8, 'step', scale='selection'),
    Collective('all_gather', 100, 'sync', scale='selection'),
    Collective('all_gather', 1, 'step'),
  )
  params = np.zeros(5, np.float32)
  ledger = resumed(Totals())
  ledger.traffic = traffic.traffic(collectives, params, workers=3)
  for synced, selection in (False, 2.0), (True, 0.5):
    ledger.count(
      {
        'relative_change': np.zeros(3),
        'synced': np.full(3, synced),
        'selection': np.full(3, selection),
      }
    )
  assert ledger.totals.sent == 2 * (8 * 2.0 + 1 + 108 * 0.5 + 1)


def test_a_session_without_a_step_has_no_throughput():
  ledger = resumed(Totals(steps=9, samples=90, seconds=3.0))
  assert ledger.summary()['samples_per_second'] is None


def test_a_row_hides_no_loss_but_that_of_a_worker_that_took_no_step():
  def row(loss, **more):
    workers = len(loss)
    metrics = {
      'loss': np.float32(loss),
      'count': np.full(workers, 4),
      'synced': np.zeros(workers, bool),
    }
    return resumed(Totals()).enter(metrics | more, 0.0)['loss']

  assert np.isnan(row([1, np.nan]))
  assert row([1, np.inf]) == np.inf
  assert row([1, np.nan], count=np.array([4, 0])) == 1
  assert row([1, 0], _weight=np.float32([9, 0])) == 1  # It counts no token.
  assert row([0, 0], _weight=np.float32([0, 0])) == 0


def test_skips_in_a_row_are_counted_across_a_resume():
  bad = {
    'relative_change': np.array([1.0, np.nan]),
    'synced': np.zeros(2, bool),
  }
  first = resumed(Totals())
  for _ in range(15):
    first.count(bad)
  second = resumed(first.totals)
  for _ in range(5):
    second.count(bad)
  with pytest.raises(NonFiniteError) as error:
    second.count(bad)
  assert str(error.value) == (
    'step 21: the gradient of worker 1 is not finite for the 21th step in a '
    'row; see max_skips'
  )
