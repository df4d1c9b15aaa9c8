"""The page of a search."""

import pathlib

from selsync_jax.runs.history import Trial
from selsync_jax.tune import page
from selsync_jax.tune.objective import Objective, Point
from selsync_jax.tune.search import Result

TIME = Objective(True, 'seconds', budget=1.0, target=0.9, words='seconds')


def reached(value, score, sent):
  run = Trial('ours', 0.1, 0, pathlib.Path(), [], {})
  return Result('local_sgd', {}, run, value, Point(score, sent, 1.0))


def test_the_verdict_of_two_seeds_ranks_nothing():
  recipe, bsp = (
    page.Final(name, name, [reached(v, 0.9, sent) for v in values])
    for name, values, sent in (
      ('recipe', (1.0, 2.0, 3.0), 50.0),
      ('tuned BSP', (10.0, 11.0, 12.5), 10.0),
    )
  )
  outcome = page.Outcome(TIME, [recipe, bsp], [])
  assert outcome.verdict == (
    'seconds: 2.0 ± 1.0 by recipe; 11.2 ± 1.3 by tuned BSP, 5.6 times as long'
  )
  few = [each._replace(seeds=each.seeds[:2]) for each in (recipe, bsp)]
  assert outcome._replace(finals=few).verdict.endswith(
    '. Two seeds cannot rank methods. The cheapest of these: tuned BSP, '
    '10.50 ± 0.71 for 10 B per worker'
  )
