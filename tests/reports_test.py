"""Each public report in reports.txt is named once, and has its test."""

import re

from tests.support.session import ROOT

REPORT = re.compile(r'^(\S+/\S+ \d+) => (\S+)::(\w+)\n  \S.*\.$', re.M)


def test_each_report_is_named_once_and_has_its_test():
  text = (ROOT / 'tests' / 'reports.txt').read_text()
  found = REPORT.findall(text)
  assert 2 * len(found) == text.partition('\n\n')[2].count('\n')
  assert len({report for report, *_ in found}) == len(found) > 10
  for report, file, name in found:
    assert f'\ndef {name}(' in (ROOT / file).read_text(), report
