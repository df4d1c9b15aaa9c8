"""The arithmetic of the benchmark next to torchft and hivemind."""

import pytest

from benchmarks.network.beside_peers import figures, Kill, Line


def lines(*times):
  """A worker's lines at some times, with an average after every other step."""
  return [Line(time, i // 2, i // 2 * 2) for i, time in enumerate(times)]


def test_a_killed_worker_loses_its_steps_since_the_last_average():
  found = figures(
    {  # Steps of a second. One takes four, because b is killed.
      'a': [lines(*range(12), *range(15, 22))],
      'b': [lines(*range(12)), lines(*range(15, 22))],
    },
    calm=(0, 10),
    stormy=(10, 21),
    kills=[Kill('b', 11.5, 17)],
  )
  assert found['step'] == found['quiet'] == 1
  assert found['average'] == 0
  assert found['pauses'] == [3]
  assert found['returns'] == [5.5]
  assert found['kept'] == pytest.approx((8 + 6) / 22)
