"""Messages of one line, where `...` stands for any text."""

import re

import pytest


def fits(line, found):
  """Whether a text is this line."""
  pattern = '.*'.join(map(re.escape, line.split('...')))
  return re.fullmatch(pattern, found) is not None


def raises(kind, line):
  """`pytest.raises` for an error whose text is this line."""

  def check(error):
    assert fits(line, str(error)), f'{error}\nis not\n{line}'
    return True

  return pytest.raises(kind, check=check)
