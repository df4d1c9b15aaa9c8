"""A comparison's choice of runs, and its table."""

import math
import pathlib
import statistics

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from selsync_jax.report import pareto_plot, significance
from selsync_jax.report.comparison_table import Baseline, Entry, Results
from selsync_jax.runs.history import Run


def entry(
  label, rate, by_seed, diverged=(), metric='accuracy', config=None, **fields
):
  """The runs of a method, from `{seed: (validation, test)}`.

  Every summary has the additional `fields`.
  """
  runs = {
    seed: Run(
      label,
      pathlib.Path('nowhere'),
      config or {},
      [],
      {
        f'validation_{metric}': validation,
        'validation_loss': 1.0,
        f'test_{metric}': test,
        'test_loss': 1.0,
        'steps': 10,
        'lssr': 0.5,
        'bytes_per_worker': 100 * (seed + 1),
        'bytes_per_worker_bsp': 1000,
        'seconds': 2.0,
        **fields,
      },
      {'goal': {'main': metric, 'higher': ['accuracy']}},
    )
    for seed, (validation, test) in by_seed.items()
  }
  return Entry(label, rate, runs, list(diverged))


def test_the_rate_is_chosen_by_validation_and_never_by_test():
  low = entry('bsp', 0.1, {0: (0.8, 0.5), 1: (0.9, 0.5)})
  high = entry('bsp', 0.2, {0: (0.7, 0.99), 1: (0.95, 0.99)})
  assert Results([low, high]).best == [low]


def test_a_lower_perplexity_is_better():
  low = entry('bsp', 0.1, {0: (20.0, 20.0)}, metric='perplexity')
  high = entry('bsp', 0.2, {0: (30.0, 10.0)}, metric='perplexity')
  assert Results([high, low]).best == [low]


def test_a_perplexity_that_is_not_finite_is_worse_than_any():
  """It is null in a summary, where other metrics are finite."""
  low = entry('bsp', 0.1, {0: (50.0, 50.0)}, metric='perplexity')
  high = entry('bsp', 10.0, {0: (None, None)}, metric='perplexity')
  assert Results([high, low]).best == [low]
  runs = [each.runs[0] for each in (high, low)]
  assert max(runs, key=lambda run: run.rank()) is runs[1]


def test_of_two_scores_that_are_not_finite_the_lower_loss_is_better():
  scores = {0: (None, None)}
  worst, worse, better = (
    entry('bsp', 0.1, scores, metric='perplexity', validation_loss=loss)
    for loss in (None, 99.0, 95.0)
  )
  assert Results([worst, worse, better]).best == [better]


def test_a_score_that_is_not_finite_is_shown_as_nan_and_decides_nothing():
  bsp = entry('bsp', 0.1, {0: (2.0, 2.0), 1: (2.0, 2.0)}, metric='perplexity')
  wild = entry(
    'fedavg', 0.1, {0: (None, None), 1: (1.0, 1.0)}, metric='perplexity'
  )
  row = Results([wild, bsp]).table()['fedavg']
  assert row['validation perplexity'].text == 'nan ± nan'
  assert row['difference to BSP'].text == '+nan'
  said = Results([wild, bsp]).verdict()
  assert said.startswith('Best mean of 2: bsp, ') and 'fedavg' not in said


def test_a_score_that_is_not_finite_is_on_no_front():
  points = [(1, math.nan), (2, 0.9), (3, 0.95)]
  assert pareto_plot.pareto(points, True) == points[1:]


def test_a_method_that_sends_nothing_is_on_no_front():
  assert pareto_plot.pareto([(0, 0.9), (5, 0.8)], True) == [(5, 0.8)]


@pytest.mark.parametrize(
  'seconds, costs',
  [
    ({}, ['bytes sent per worker']),
    ({'virtual_seconds': 3.0}, ['bytes sent per worker', 'virtual time']),
  ],
)
def test_quality_is_drawn_over_seconds_only_if_a_cluster_measured_them(
  seconds, costs
):
  plot = pareto_plot.plot([entry('bsp', 0.1, {0: (0.9, 0)}, **seconds)], 'loss')
  shown = [panel.x.label.removesuffix(' (seconds)') for panel in plot.panels]
  assert shown == costs


def test_methods_that_would_hide_each_other_share_a_marker_with_both_names():
  first, second = {0: (0.9, 0), 1: (0.8, 0)}, {0: (0.9, 0), 1: (0.85, 0)}
  entries = [
    entry(name, 0.1, scores)
    for name, scores in [
      ('local SGD', first),
      ('found by tune', first),
      ('bsp, period 1', second),
    ]
  ]
  plot = pareto_plot.plot(entries, 'accuracy')
  assert {'local SGD = found by tune', 'bsp, period 1'} <= plot.legend.keys()
  named = {name.text: name.entry for name in plot.panels[0].names}
  assert named == {
    'local SGD = found by tune': 'local SGD = found by tune',
    'bsp': 'bsp, period 1',
  }


def test_one_worker_sends_nothing_nor_would_it_under_bsp():
  nothing = {'bytes_per_worker': 0, 'bytes_per_worker_bsp': 0}
  alone = entry('bsp', 0.1, {0: (0.9, 0.9)}, **nothing)
  assert Results([alone]).table()['bsp']['of BSP'].text == '0.0%'


def test_a_rate_that_diverges_with_one_seed_is_worse_than_any_that_does_not():
  safe = entry('bsp', 0.1, {0: (0.1, 0.1), 1: (0.1, 0.1)})
  wild = entry('bsp', 0.2, {0: (0.9, 0.9)}, diverged=[1])
  assert Results([wild, safe]).best == [safe]


def test_the_difference_to_bsp_is_taken_seed_by_seed():
  bsp = entry('bsp', 0.1, {0: (0.9, 0), 1: (0.7, 0), 2: (0.8, 0)})
  ours = entry('selsync, delta 1', 0.1, {0: (0.91, 0.5), 1: (0.71, 0.7)})
  row = Results([bsp, ours]).table()['selsync, delta 1']
  assert row['difference to BSP'].text == '+0.01'
  assert row['validation accuracy'].text == '0.81 ± 0.14'
  assert row['test accuracy'].text == '0.60 ± 0.14'
  assert row['sent per worker'].text == '150 B'
  assert row['of BSP'].text == '15.0%'


def apart(*values, scale=1.0):
  """The difference of scores that are near `scale`, one for each seed."""
  others = dict.fromkeys(range(len(values)), scale)
  scores = {seed: scale + value for seed, value in enumerate(values)}
  return significance.difference(scores, others)


def test_the_interval_of_a_difference_is_students():
  """With three seeds, the quantile of t is 4.3027: table of Gosset, 1908."""
  margin = 4.3027 * 0.02 / math.sqrt(3)
  low, high = 0.03 - margin, 0.03 + margin
  text = apart(0.01, 0.03, 0.05).cell('+.4f').text
  assert text == f'+0.0300 [{low:+.4f}, {high:+.4f}]'


def test_differences_that_are_not_finite_are_not_called_equal():
  nan = apart(math.nan, math.nan, math.nan)
  assert nan.cell('+.4f').text == '+nan [+nan, +nan]' and not nan.excludes_zero


@pytest.mark.parametrize(
  'found, text',
  [
    (apart(0.0111), '+0.0111'),
    (apart(0.0111, 0.0111 + 6e-8), '+0.0111'),
    (apart(0.3, 0.4), '+0.3500'),
    (apart(0.0111, 0.0111, 0.0111 + 6e-8), '+0.0111, equal in 3'),
    (apart(2e-6, 4e-6, 3e-6, scale=8.0), '+0.0000, equal in 3'),
  ],
)
def test_few_seeds_and_differences_that_agree_to_rounding_tell_nothing(
  found, text
):
  """Accuracies are float32, so equal counts of right answers may differ."""
  assert found.bounds == (-math.inf, math.inf) and not found.excludes_zero
  assert found.cell('+.4f').text == text


def test_a_method_is_compared_to_bsp_with_as_many_workers():
  two, four = {'workers': 2, 'seed': 0}, {'workers': 4, 'seed': 0}
  entries = [
    entry('bsp, workers 2', 0.1, {0: (0.5, 0)}, config=two),
    entry('bsp, workers 4', 0.3, {0: (0.7, 0)}, config=four),
    entry('fedavg, workers 4', 0.1, {0: (0.8, 0)}, config=four),
    entry('fedavg, workers 2', 0.1, {0: (0.8, 0)}, config=two),
  ]
  table = Results(entries).table()
  found = [row['difference to BSP'].text for row in table.values()]
  assert found == ['–', '–', '+0.1000', '+0.3000']


def test_any_method_can_be_the_baseline():
  entries = [
    entry('bsp', 0.1, {0: (0.5, 0), 1: (0.6, 0), 2: (0.7, 0)}),
    entry('local_sgd, period 8', 0.1, {0: (0.6, 0), 1: (0.75, 0), 2: (0.8, 0)}),
  ]
  local = Baseline('local_sgd', ['local_sgd, period 8'])
  title = 'difference to local_sgd'
  columns = ['difference', 'test_accuracy', 'steps']
  bsp, own = Results(entries, local).table(columns).values()
  assert [*bsp] == [title, 'test accuracy', 'steps']
  assert bsp[title].text == '-0.12 [-0.19, -0.04]' and own[title].text == '–'
  first, second = Results(entries, local).records()
  assert first['difference'] == pytest.approx(-0.35 / 3)
  assert first['difference_low'] == pytest.approx(-0.1884, abs=1e-4)
  assert first['validation_accuracy_sd'] == pytest.approx(0.1)
  assert second['difference'] is None and second['difference_low'] is None


def test_without_bsp_there_is_no_difference_to_it():
  row = Results([entry('fedavg', 0.1, {0: (0, 0.9)})]).table()['fedavg']
  assert row['difference to BSP'].text == '–'


def test_the_best_is_chosen_by_validation_and_its_spread_is_named():
  low, high = {0: 0.60, 1: 0.70, 2: 0.80}, {0: 0.80, 1: 0.82, 2: 0.84}
  entries = [
    entry(name, 0.1, {seed: (x, 1 - x) for seed, x in scores.items()})
    for name, scores in {'bsp': low, 'selsync, delta 1': high}.items()
  ]
  assert Results(entries).verdict() == (
    'Best of 2: selsync, delta 1, validation accuracy 82.0% ± 2.0% for 20.0% '
    'of the traffic of BSP. Its seeds do not tell it from bsp. None of these '
    'is cheaper'
  )


def test_methods_are_told_apart_by_their_differences_seed_by_seed():
  """Seeds differ by 0.1, but with each, `better` is 0.01 to 0.02 above BSP.

  The mean of `wild` is further from BSP's, but its interval contains 0.
  """
  bsp, better, wild = (
    entry(name, 0.1, {seed: (score, 0) for seed, score in enumerate(scores)})
    for name, scores in {
      'bsp': (0.60, 0.70, 0.80),
      'fedavg': (0.61, 0.715, 0.82),
      'fedprox': (0.80, 0.70, 0.60),
    }.items()
  )
  assert Results([bsp, better]).verdict().endswith(' of the traffic of BSP')
  for other in (bsp, better):
    said = Results([other, wild]).verdict()
    assert '. Its seeds do not tell it from ' in said


@pytest.mark.parametrize(
  'seeds, start, doubt',
  [
    (1, 'Best mean of 2: gossip', 'One seed cannot rank methods'),
    (2, 'Best mean of 2: gossip', 'Two seeds cannot rank methods'),
    (3, 'Best of 2: gossip', 'Its seeds do not tell it from top_k'),
  ],
)
def test_the_headline_names_the_cheapest_that_seeds_do_not_tell_from_the_best(
  seeds, start, doubt
):
  """With each seed, the two differ by one of 180 images."""
  wide, cheap = (
    entry(
      name,
      0.1,
      {seed: ((right + seed) / 180, 0) for seed in range(seeds)},
      bytes_per_worker=sent,
    )
    for name, right, sent in (('gossip', 170, 863), ('top_k', 169, 7))
  )
  said = Results([wide, cheap]).verdict()
  assert said.startswith(f'{start}, validation accuracy 9')
  assert f' for 86.3% of the traffic of BSP. {doubt}. The cheapest ' in said
  _, cheapest = said.split('. The cheapest of these: ')
  assert cheapest.startswith('top_k, validation accuracy 9')
  assert cheapest.endswith(' for 0.7% of the traffic of BSP')


def test_one_method_is_not_ranked():
  said = Results([entry('bsp', 0.1, {0: (0.9, 0.9)})]).verdict()
  assert said == (
    'Best of 1: bsp, validation accuracy 90.0% for 10.0% of the traffic of BSP'
  )


def test_a_method_that_diverges_with_one_seed_is_not_the_best():
  safe = entry('bsp', 0.1, {0: (0.8, 0.8), 1: (0.8, 0.8)})
  wild = entry('fedavg', 0.1, {0: (0.9, 0.9)}, diverged=[1])
  said = Results([wild, safe]).verdict()
  assert said == (
    'Best of 2: bsp, validation accuracy 80.0% ± 0.0% for 15.0% of the traffic '
    'of BSP'
  )


def test_a_method_that_diverges_with_every_seed_is_named():
  safe = entry('bsp', 0.1, {0: (0.8, 0.8), 1: (0.8, 0.8)})
  said = Results([entry('fedavg', 0.1, {}, [0, 1]), safe]).verdict()
  assert said.startswith('Best of 2: bsp, ')
  assert said.endswith('. Diverged with every seed: fedavg')


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6))
def test_the_spread_is_the_sample_standard_deviation(values):
  cell = significance.spread(values, '.6f')
  assert cell.value == statistics.fmean(values)
  mean, deviation = map(float, cell.text.split(' ± '))
  assert mean == pytest.approx(np.mean(values), abs=1e-6)
  assert deviation == pytest.approx(np.std(values, ddof=1), abs=1e-6)


@pytest.mark.parametrize(
  'groups, form, shown',
  [
    (
      [[6.9377, 6.9988, 7.0599], [7.1, 7.1, 7.1]],
      '.4g',
      ['6.999 ± 0.061', '7.100 ± 0.000'],
    ),
    ([[1204.0, 1235.0, 1266.0]], '.4f', ['1235 ± 31']),
    ([[0.9718, 0.9750, 0.9782]], '.1%', ['97.50% ± 0.32%']),
    ([[0.9, 0.9 + 6e-8]], '.3f', ['0.900 ± 0.000']),
    ([[1e20, 3e20]], '.4f', ['2e+20 ± 1.414e+20']),
    ([[math.nan, 1.0], []], '.4f', ['nan ± nan', '–']),
  ],
)
def test_the_digits_of_a_column_follow_its_smallest_spread(groups, form, shown):
  form = significance.column_form(groups, form)
  assert [significance.spread(values, form).text for values in groups] == shown


@given(
  st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=8
  ),
  st.booleans(),
)
def test_the_front_has_the_methods_that_no_other_beats(points, higher):
  front = pareto_plot.pareto(points, higher)
  worth = (lambda q: q) if higher else (lambda q: -q)
  best = {}  # The best quality at each cost, by a sweep over costs.
  for cost, quality in sorted(points, key=lambda p: (p[0], -worth(p[1]))):
    if not best or worth(quality) > max(map(worth, best.values())):
      best[cost] = quality
  assert set(front) == set(best.items())
