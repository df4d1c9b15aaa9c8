"""The part of a page that a command writes."""

from selsync_jax.report import marked


def test_a_new_table_keeps_the_command_beside_it_and_all_other_parts(tmp_path):
  page = tmp_path / 'page.md'
  text = 'a\n<!-- times: `make times` -->\n{}<!-- /times -->\n{}'
  other = '<!-- times_late -->\nb\n<!-- /times_late -->\n'
  page.write_text(text.format('old\n\nold\n', other))
  marked.insert('| \\1 \\d |\n', page, 'times')
  assert page.read_text() == text.format('| \\1 \\d |\n', other)
