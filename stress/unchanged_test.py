"""The comparison of two runs by `stress.unchanged`."""

import json

import numpy as np

from stress import unchanged


def write(workdir, losses, error=None):
  workdir.mkdir(parents=True)
  rows = [
    {'step': i, 'loss': loss, 'synced': i == 1, 'seconds': np.random.rand()}
    for i, loss in enumerate(losses, 1)
  ]
  text = ''.join(json.dumps(row) + '\n' for row in rows)
  (workdir / 'metrics.jsonl').write_text(text)
  if error:
    (workdir / 'error').write_text(error)


def test_equal_runs_are_equal_whatever_their_times(tmp_path):
  for which in ('base', 'new'):
    write(tmp_path / which / '0', [3.0, 2.0])
  assert unchanged.cell(tmp_path / 'base', tmp_path / 'new') == (
    'equal (1)',
    [],
  )


def test_the_first_row_that_differs_is_reported(tmp_path):
  write(tmp_path / 'base' / '0', [3.0, 2.0, 1.0])
  write(tmp_path / 'new' / '0', [3.0, 2.5, 1.5])
  assert unchanged.cell(tmp_path / 'base', tmp_path / 'new') == (
    'DIFFERS',
    ['seed 0: metrics.jsonl: step 2: loss was 2.0, is 2.5'],
  )


def test_a_method_of_one_commit_alone_is_not_compared(tmp_path):
  write(tmp_path / 'new' / '0', [3.0])
  cell = unchanged.cell(tmp_path / 'base', tmp_path / 'new')
  assert cell == ('only here', [])


def test_a_run_that_fails_where_none_did_differs(tmp_path):
  write(tmp_path / 'base' / '0', [3.0])
  write(tmp_path / 'new' / '0', [3.0], error='ValueError: no')
  text, _ = unchanged.cell(tmp_path / 'base', tmp_path / 'new')
  assert text == 'DIFFERS'


def test_a_bit_or_a_name_of_an_array_is_reported():
  def arrays(**values):
    return {k: ((1,), 'float32', v) for k, v in values.items()}

  base = arrays(a=b'1', b=b'2')
  assert unchanged.difference_of_arrays(base, base) is None
  assert unchanged.difference_of_arrays(base, arrays(a=b'1', b=b'3')) == (
    '1 of 2 arrays differ: b'
  )
  assert unchanged.difference_of_arrays(base, arrays(a=b'1', c=b'2')) == (
    'the same arrays have other names: b became c'
  )
