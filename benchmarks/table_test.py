"""What a benchmark ends with."""

import argparse
import json

import pytest

from benchmarks.table import insert
from benchmarks.table import page_with
from benchmarks.table import report
from benchmarks.table import Table


def test_tables_are_aligned_and_the_result_is_written(tmp_path, capsys):
  times = Table(('', 'ms'), [['a step', '10.0'], ['b', '2.5']], 'on a CPU')
  report(tmp_path / 'out.json', {'ms': [10.0]}, times, notes=['limit 3'])
  assert capsys.readouterr().out == (
    'on a CPU\n          ms\na step  10.0\nb        2.5\n\nlimit 3\n'
  )
  assert json.loads((tmp_path / 'out.json').read_text()) == {'ms': [10.0]}


def test_a_page_keeps_the_command_beside_a_new_table(tmp_path):
  page = tmp_path / 'page.md'
  text = 'a\n<!-- times: `make times` -->\n{}<!-- /times -->\nb\n'
  page.write_text(text.format('old\n\nold\n'))
  insert('new\n', page, 'times')
  assert page.read_text() == text.format('new\n')
  assert page_with('times')(str(page)) == page
  with pytest.raises(argparse.ArgumentTypeError, match='must have <!-- gone'):
    page_with('gone')(str(page))
