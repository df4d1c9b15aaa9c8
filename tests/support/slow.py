"""Cases that are slow in tests that are not."""

import pytest


def slow(*values, **options):
  """Returns a case that `make test-all` runs and `make test` leaves out."""
  return pytest.param(*values, marks=pytest.mark.slow, **options)
