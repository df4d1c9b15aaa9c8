"""Fixtures for tests of a run's files."""

import pytest

from tests.support import perceptron


@pytest.fixture(scope='module')
def normalized():
  """The name of a model with batch statistics."""
  with perceptron.registered():
    yield 'normalized'
