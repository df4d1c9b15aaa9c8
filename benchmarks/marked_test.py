"""The part of a page that a command writes."""

import pytest

from benchmarks import marked
from selsync_jax.config import ConfigError


def test_a_new_table_keeps_the_command_beside_it_and_all_other_parts(tmp_path):
  page = tmp_path / 'page.md'
  text = 'a\n<!-- times: `make times` -->\n{}<!-- /times -->\n{}'
  other = '<!-- times_late -->\nb\n<!-- /times_late -->\n'
  page.write_text(text.format('old\n\nold\n', other))
  marked.insert('| \\1 \\d |\n', page, 'times')
  assert page.read_text() == text.format('| \\1 \\d |\n', other)


@pytest.mark.parametrize(
  'content, rule',
  [
    (None, 'No such file or directory'),
    (b'\xff', 'must be UTF-8'),
    (b'<!-- /times -->', 'must hold <!-- times -->'),
    (2 * b'<!-- times -->\n<!-- /times -->', 'must hold <!-- times -->'),
  ],
)
def test_a_page_without_the_part_is_refused(content, rule, tmp_path):
  page = tmp_path / 'page.md'
  if content:
    page.write_bytes(content)
  with pytest.raises(ConfigError) as error:
    marked.check(page, 'times')
  assert str(error.value).startswith(f'{page}: {rule}')
