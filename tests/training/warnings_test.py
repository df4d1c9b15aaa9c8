"""Warnings: an unreachable delta, messages too short, a loss of NaN."""

import math
import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.data import from_arrays
from selsync_jax.training.warnings import (
  NotFiniteWarning,
  of_parts,
  OverflowWarning,
  SilenceWarning,
)
from tests.support import short_runs


def test_a_run_whose_delta_is_too_large_says_so_once(tmp_path, capsys):
  short_runs.run(
    tmp_path / 'run',
    'selsync_paper',
    data__backend='numpy',
    sync__delta=1e6,
    steps=110,
    eval__every_epochs=100.0,
    checkpoint__every=1000,
  )
  assert capsys.readouterr().err == (
    'step 100: 1 of 100 steps synchronized (LSSR 0.990), so the workers train '
    'almost alone; the page of the run shows LSSR for each delta, and '
    '--config.sync.delta=None lets a budget find its own\n'
  )


def warned(trigger, syncs, steps, capsys):
  """Whether a run warns after some synchronizations in some steps."""
  warning = SilenceWarning(trigger)
  for _ in range(2):
    warning.watch({'step': steps, 'lssr': 1 - syncs / steps})
  return len(capsys.readouterr().err.splitlines())


@pytest.mark.parametrize(
  'syncs, steps, expected',
  [(1, 99, 0), (1, 100, 1), (2, 100, 0), (2, 201, 1), (50, 5000, 0)],
)
def test_it_warns_after_one_synchronization_in_100_steps_or_above_lssr_099(
  syncs, steps, expected, capsys
):
  assert warned(ss.selsync(0.3), syncs, steps, capsys) == expected
  bounded = ss.any_of(ss.selsync(0.3), ss.max_interval(1000))
  assert warned(bounded, syncs, steps, capsys) == expected


@pytest.mark.parametrize(
  'trigger',
  [
    ss.every(1000),
    ss.selsync(math.inf),
    ss.budgeted(ss.selsync(0.3), lssr=0.999),
  ],
)
def test_silence_on_purpose_is_no_reason_to_warn(trigger, capsys):
  assert warned(trigger, 1, 1000, capsys) == 0


@pytest.mark.parametrize(
  'trigger',
  [
    ss.selsync(0.0, vote_every=200),
    ss.any_of(ss.selsync(0.0, vote_every=200), ss.max_interval(1000)),
    ss.min_interval(200, trigger=ss.selsync(0.0)),
  ],
)
@pytest.mark.parametrize(
  'syncs, steps, expected',
  [(0, 100, 0), (100, 20_000, 0), (1, 19_999, 0), (1, 20_000, 1)],
)
def test_only_synchronizations_that_were_possible_are_missed(
  trigger, syncs, steps, expected, capsys
):
  assert warned(trigger, syncs, steps, capsys) == expected


def test_a_run_whose_messages_hold_too_little_says_so_once(tmp_path, capsys):
  short_runs.run(
    tmp_path / 'run',
    'micro',
    data__backend='numpy',
    sync__capacity=1.0,
    steps=210,
    seed=2,  # More than half do not fit at 169 steps in a row.
    eval__every_epochs=100.0,
    checkpoint__every=1000,
  )
  said = capsys.readouterr().err
  assert re.fullmatch(
    r'step \d+: \d\d% of the selected elements did not fit into the messages, '
    'and more than 50% at each of the last 100 steps; raise capacity, or leave '
    'it out\n',
    said,
  )


@pytest.mark.parametrize('share, often', [(0.5, 0), (0.51, 1)])
def test_only_100_steps_in_a_row_are_a_reason_to_warn(share, often, capsys):
  warning = OverflowWarning()
  for step in range(1, 400):
    whole = step == 60  # The streak restarts.
    warning.watch(
      {'step': step} if whole else {'step': step, 'overflow': share}
    )
  said = capsys.readouterr().err
  assert said.count('step 160:') == len(said.splitlines()) == often


def test_a_validation_loss_of_nan_says_so_and_leaves_no_accuracy(
  tmp_path, capsys
):
  def images(value):
    image = np.full((64, 8, 8, 1), value, np.float32)
    return {'image': image, 'label': np.zeros(64, int)}

  @ss.register_dataset
  def broken():
    return from_arrays(
      train=images(1),
      validation=images(np.nan),
      test=images(1),
      task='classification',
      num_classes=10,
    )

  fields = {'data__name': 'broken', 'steps': 4, 'batch_size': 4}
  summary = short_runs.run(tmp_path / 'run', 'bsp', **fields)
  said = capsys.readouterr().err
  assert re.fullmatch(
    r'step \d: validation loss is nan; check the data, .*\n', said
  )
  assert math.isnan(summary['validation_accuracy'])
  assert summary['test_accuracy'] == 1


def test_a_loss_that_is_not_finite_is_reported_once(capsys):
  warning = NotFiniteWarning()
  for step, loss in enumerate([1.0, math.inf, math.nan, 1.0], 1):
    warning.watch({'step': step, 'loss': loss})
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('step 2: loss is inf on a worker; check the data, ')


@pytest.mark.parametrize(
  'averager, reducer, state, warns',
  [
    (ss.mean(), ss.all_reduce(), {}, True),
    (ss.gossip(), ss.top_k(0.5), {}, True),
    (ss.mean(), ss.all_reduce(), {'var': jnp.ones(3)}, False),
    (ss.mean(), ss.no_reduction(), {}, False),
    (ss.outer(optax.sgd(0.5)), ss.all_reduce(), {}, False),
    (ss.no_averaging(), ss.all_reduce(), {}, False),
  ],
)
def test_an_average_of_equal_parameters_is_said_to_be_useless(
  averager, reducer, state, warns
):
  lines = [*of_parts(ss.Strategy(ss.every(1), averager, reducer), state)]
  assert len(lines) == warns
  assert all(f'{averager} sends equal ones' in line for line in lines)
