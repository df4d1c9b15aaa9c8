"""Cases of which only some are quick enough for every run of the tests."""

import pytest


def slow_but(quick, cases):
  """The cases, of which those that are not quick are marked as slow."""
  return [
    case if case in quick else pytest.param(case, marks=pytest.mark.slow)
    for case in cases
  ]
