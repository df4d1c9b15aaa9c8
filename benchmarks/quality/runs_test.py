"""The report of a benchmark of several tasks."""

import argparse
import json

import pytest

from benchmarks.quality import runs


def test_each_task_has_its_part_of_the_page(tmp_path):
  page, out = tmp_path / 'page.md', tmp_path / 'any.json'
  parts = '<!-- any_{0} -->\n{1}<!-- /any_{0} -->\n'
  page.write_text(parts.format('one', '') + parts.format('two', 'kept\n'))
  options = argparse.Namespace(tasks=['one'], into=page, out=out)

  def measure(task):
    return runs.Section('Title', f'about {task}\n', {'score': 1.0})

  runs.report_tasks('any', options, measure)
  new = parts.format('one', '\nabout one\n\n')
  assert page.read_text() == new + parts.format('two', 'kept\n')
  assert json.loads(out.read_text()) == {'one': {'score': 1.0}}
  options.tasks = ['two', 'three']
  with pytest.raises(SystemExit) as error:
    runs.report_tasks('any', options, pytest.fail)
  assert str(error.value).startswith(f'--into={page}: must hold <!-- any_three')
