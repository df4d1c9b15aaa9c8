"""The text of the installed packages."""

import sysconfig

import numpy as np

from tests.support import own_code

with own_code.forgotten():  # Other tests list the data sets.
  from benchmarks.quality import packages_gpt


def test_splits_are_of_different_files_and_the_same_at_each_call(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(sysconfig, 'get_path', lambda name: str(tmp_path))
  for index in range(40):
    (tmp_path / f'{index}.py').write_bytes(bytes([index]) * 9)
  first, again = (packages_gpt.package_text(bptt=8).splits for _ in range(2))
  seen = [set(each['tokens'].flat) for each in first.values()]
  assert set.union(*seen) == {*range(40)} and sum(map(len, seen)) == 40
  for split, each in first.items():
    assert each['tokens'].shape == (len(each['tokens']), 9)
    np.testing.assert_array_equal(each['tokens'], again[split]['tokens'])
