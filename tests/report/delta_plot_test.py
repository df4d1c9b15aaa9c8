"""LSSR for each delta, from recorded gradient changes, like in `selsync`."""

import json

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.report import delta_plot
from selsync_jax.runs import history
from tests.support import recorded

changes_of = arrays.arrays(
  np.float64, (24, 5), elements=st.floats(0, 10, width=16)
)


def votes_for(changes, delta, quorum, max_period, vote_every):
  """How many of the steps synchronize, flag by flag."""
  steps = since = 0
  raised = np.zeros(changes.shape[1], bool)
  for i, step in enumerate(changes, 1):
    since, raised = since + 1, raised | (step >= delta)
    if i % vote_every:
      continue
    flags, raised = raised, np.zeros_like(raised)
    voted = flags.any() and (quorum is None or flags.mean() >= quorum)
    if voted or (max_period and since >= max_period):
      steps, since = steps + 1, 0
  return steps


@given(
  changes_of,
  st.floats(0.01, 10),
  st.sampled_from([None, 0.2, 0.6, 1.0]),
  st.sampled_from([None, 1, 3, 10]),
  st.sampled_from([1, 2, 4]),
)
def test_lssr_is_the_share_of_steps_that_no_vote_synchronizes(
  changes, delta, quorum, max_period, vote_every
):
  decide = delta_plot.deciding(changes, quorum, vote_every)
  found = delta_plot.lssr(decide, delta, vote_every, max_period)
  every = votes_for(changes, delta, quorum, max_period, vote_every)
  assert found == pytest.approx(1 - every / 24)


@pytest.mark.parametrize('quorum', [None, 0.5, 0.75])
@pytest.mark.parametrize('vote_every', [1, 3])
def test_the_deciding_change_is_what_selsync_judges(quorum, vote_every):
  rng = np.random.default_rng(0)
  grads = rng.lognormal(size=(48, 4)).astype(np.float32)
  tx = ss.selsync(0.2, smoothing=0.3, quorum=quorum, vote_every=vote_every)

  def step(state, grad):
    _, state = tx.update(grad, state)
    return state, (state.measure.change, state.sync)

  def run(grads):
    return jax.lax.scan(step, tx.init(grads[0]), grads)[1]

  changes, sync = jax.vmap(run, 1, 1, axis_name=ss.AXIS)(jnp.array(grads))
  decides = delta_plot.deciding(np.array(changes), quorum, vote_every)
  voted = sync[vote_every - 1 :: vote_every, 0]
  np.testing.assert_array_equal(decides >= np.float32(0.2), voted)
  assert 0 < sync[:, 0].mean() < 1


def test_a_change_that_is_not_known_reaches_no_delta():
  changes = np.array([[np.nan, 0.1], [np.nan, np.nan], [0.2, 0.3]])
  assert list(delta_plot.deciding(changes)) == [0.1, -np.inf, 0.3]


def test_a_page_shows_the_lssr_of_every_recorded_change(tmp_path):
  changes = np.array([[np.inf, 0.4, 0.1, 0.05, 0.2]]).T
  recorded.write_run(tmp_path / 'run', changes)
  plot = delta_plot.plot(history.read(tmp_path / 'run'))
  curve, own = plot.panels[0].marks
  np.testing.assert_allclose(curve.x, [0.05, 0.1, 0.2, 0.4])
  np.testing.assert_allclose(curve.y, [0, 1 / 5, 2 / 5, 3 / 5])
  assert set(own.y) == {1 - 1 / 5}  # With delta 1.
  assert ' To keep that share local: delta 0.4 for 0.5.' in plot.caption


def test_a_longest_period_bounds_the_lssr_of_a_page(tmp_path):
  recorded.write_run(tmp_path / 'run', recorded.random_changes(100, 2))
  path = tmp_path / 'run' / 'config.json'
  config = json.loads(path.read_text())
  config['sync']['max_period'] = 5
  path.write_text(json.dumps(config))
  plot = delta_plot.plot(history.read(tmp_path / 'run'))
  assert 0.7 < plot.panels[0].marks[0].y.max() <= 0.8
  assert 'that max_period = 5 forces are included' in plot.caption


@pytest.mark.parametrize('changes', [[[np.inf]], [[np.inf], [0.0]]])
def test_a_run_without_a_finite_change_tells_none(changes, tmp_path):
  recorded.write_run(tmp_path / 'run', np.array(changes))
  assert delta_plot.plot(history.read(tmp_path / 'run')) is None
