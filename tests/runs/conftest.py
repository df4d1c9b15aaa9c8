"""What tests of a run's files share."""

import pytest

from tests.support import perceptron


@pytest.fixture(scope='module')
def normalized():
  """The name of a model with batch statistics."""
  with perceptron.registered():
    yield 'normalized'
