"""Mistakes in custom training loops end in one line, or do no harm."""

import functools
import re

import jax
import numpy as np
import pytest

from tests.support.loop_mistakes import MISTAKES, RIGHT


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_a_custom_loop_is_named_in_one_line_or_harmless(mistake):
  if mistake.line == RIGHT:
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, *mistake.loop())
    return
  with pytest.raises(Exception) as error:  # noqa: PT011
    mistake.loop()  # A warning is an error here.
  line = str(error.value).partition('\n----')[0]  # JAX adds a note.
  assert re.search(mistake.line, line) and '\n' not in line
