"""The one reader of a run's files."""

import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from selsync_jax.runs import files

SCALARS = st.none() | st.booleans() | st.integers() | st.text()


@pytest.mark.slow
@given(
  st.recursive(SCALARS, lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_where_any_value_may_stand_every_value_is_read(value):
  assert files.parse(json.dumps([value]).encode(), list) == [value]


def test_a_bool_is_no_number():
  with pytest.raises(ValueError, match='Expected'):
    files.parse(b'[true]', list[float])
