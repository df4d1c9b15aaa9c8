"""The output of a benchmark."""

import argparse
import json

import pytest

from benchmarks.table import page_with, report, Table


def test_tables_are_aligned_and_the_result_is_written(tmp_path, capsys):
  times = Table(('', 'ms'), [['a step', '10.0'], ['b', '2.5']], 'on a CPU')
  report(tmp_path / 'out.json', {'ms': [10.0]}, times, notes=['limit 3'])
  assert capsys.readouterr().out == (
    'on a CPU\n          ms\na step  10.0\nb        2.5\n\nlimit 3\n'
  )
  assert json.loads((tmp_path / 'out.json').read_text()) == {'ms': [10.0]}


def test_a_page_without_the_part_of_a_table_is_refused(tmp_path):
  page = tmp_path / 'page.md'
  page.write_text('<!-- times: `make times` -->\n<!-- /times -->\n')
  assert page_with('times')(str(page)) == page
  with pytest.raises(argparse.ArgumentTypeError, match='must hold <!-- gone'):
    page_with('times', 'gone')(str(page))
