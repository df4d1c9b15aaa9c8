"""Cases of which only some are quick enough for every run of the tests."""

import pytest


def slow(*values):
  """Returns a case that `make test-all` runs and `make test` leaves out."""
  return pytest.param(*values, marks=pytest.mark.slow)


def slow_but(quick, cases):
  """The cases; cases that are not quick are marked as slow."""
  return [case if case in quick else slow(case) for case in cases]
