"""The list of public reports leads to tests that exist."""

import re

from tests.support.reports import REPORTS
from tests.support.session import ROOT


def test_each_report_is_named_once_and_has_its_test():
  assert len({report[:2] for report in REPORTS}) == len(REPORTS)
  for report in REPORTS:
    assert re.fullmatch(r'[\w.-]+/[\w.-]+', report.repository)
    assert len(report.situation) < 80 and report.situation.endswith('.')
    file, name = report.case.split('::')
    assert f'\ndef {name}(' in (ROOT / file).read_text(), report
