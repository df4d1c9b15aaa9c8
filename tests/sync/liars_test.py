"""One liar among eight workers, under every averager that withstands one."""

import pytest

import selsync_jax as ss
from tests.support import liars

AVERAGERS = {
  'geometric_median': ss.geometric_median(),
  'centered_clip': ss.centered_clip(),
  'trimmed_mean': ss.trimmed_mean(),
}


def excess(losses):
  """The share by which each lie raises the loss over the honest one."""
  return losses[1:] / losses[0] - 1


@pytest.mark.parametrize('name', AVERAGERS)
def test_one_liar_of_eight_costs_at_most_2_percent(name):
  found, reports = liars.losses(AVERAGERS[name])
  assert (excess(found) <= 0.02).all()
  if name != 'trimmed_mean':  # It has no weights.
    for lie in ('flipped', 'not finite', 'scaled'):
      assert reports[liars.LIES.index(lie), liars.BEGINS] == liars.LIAR


def test_under_the_mean_it_ruins_the_run():
  found, _ = liars.losses(ss.mean())
  losses = dict(zip(liars.LIES[1:], excess(found), strict=True))
  for lie in ('flipped', 'not finite', 'scaled'):
    assert not losses[lie] < 0.5
