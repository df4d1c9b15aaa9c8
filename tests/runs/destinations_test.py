"""Writers named by `config.log.to`: built-in and custom writers."""

import contextlib
import json
import re
import sys
import time

import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.__main__ import run_command
from selsync_jax.config import RunError
from selsync_jax.models import tasks
from selsync_jax.runs import records, writers
from tests.support import recorded


@pytest.mark.parametrize('name', ['=1+1', '+A1', '-A1', '@A1', '\tA1', ''])
def test_no_metric_has_the_name_of_a_formula(name):
  def example_metrics(outputs, batch):
    del batch
    return {'loss': outputs, name: outputs}

  task = tasks.Task('image', example_metrics)
  column = np.zeros(2, np.float32)
  with pytest.raises(ValueError, match='the name must start with a letter, '):
    tasks.check_metrics(task, column, {'mask': column})


class Failing(contextlib.AbstractContextManager):
  """Loses its server."""

  def __init__(self, workdir, step, config):
    assert (workdir.is_dir(), step, config['seed']) == (True, 0, 7)

  def write(self, row):
    if row['step'] > 1:
      raise ConnectionError('no answer\nfrom the server')

  def __exit__(self, *exc):
    print('closed')


def refused(workdir, step, config):
  """A writer that cannot be opened."""
  raise KeyError('token')


@pytest.fixture
def own():
  ss.register_writer(Failing)
  ss.register_writer(refused)


def test_a_writer_that_fails_does_not_end_the_run(own, tmp_path, capsys):
  recorded.write_rows(tmp_path, recorded.ROWS, 'Failing', 'tensorboard', seed=7)
  printed = capsys.readouterr()
  assert printed.out == 'closed\n'
  assert re.fullmatch(
    r"config\.log\.to='Failing': .*destinations_test\.py:\d+: ConnectionError: "
    'no answer from the server; it gets no more rows, the run continues\n',
    printed.err,
  )
  assert len(records.read_metrics(tmp_path)) == 3
  assert len(recorded.events(tmp_path)['loss']) == 3


def test_a_writer_that_cannot_be_opened_is_named_and_others_are_closed(
  own, tmp_path, capsys
):
  line = r"config\.log\.to='refused': .*destinations_test\.py:\d+: KeyError"
  with pytest.raises(RunError, match=line):
    recorded.write_rows(tmp_path, recorded.ROWS, 'Failing', 'refused', seed=7)
  assert capsys.readouterr().out == 'closed\n'


@pytest.mark.parametrize(
  'flags, message',
  [
    (['paper'], "'paper' is not one of tensorboard, wandb, mlflow"),
    (['tensorboard'] * 2, "'tensorboard' is named twice"),
    (['[3]'], 'config.log.to=(3,): must be a name'),
  ],
)
def test_a_wrong_name_is_one_line_before_any_work(
  flags, message, tmp_path, capsys
):
  given = [f'--config.log.to={flag}' for flag in flags]
  with pytest.raises(SystemExit, match=r'^2$'):
    run_command(['train', *given, f'--workdir={tmp_path / "run"}'])
  line = capsys.readouterr().err
  assert message in line and line.count('\n') == 1
  assert not (tmp_path / 'run').exists()


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, 'path', [str(tmp_path)])
  (tmp_path / 'wandb').mkdir()  # W&B leaves one in a working directory.
  for package in ('wandb', 'mlflow'):
    monkeypatch.delitem(sys.modules, package, raising=False)
    remedy = rf"not installed; pip install 'selsync-jax\[{package}\]'"
    with pytest.raises(ValueError, match=remedy):
      writers.check([package])


SCALARS = [records.numbers(row) for row in recorded.ROWS]


@pytest.mark.slow
def test_wandb_has_the_rows_of_all_sessions_under_one_id(tmp_path):
  recorded.write_rows(tmp_path, recorded.ROWS, 'wandb', seed=7)
  recorded.write_rows(tmp_path, recorded.ROWS[1:], 'wandb', seed=7)
  files = sorted(tmp_path.glob('wandb/offline-run-*/*.wandb'))
  (identity,) = {file.stem.removeprefix('run-') for file in files}
  assert identity == (tmp_path / 'wandb.id').read_text().strip()
  sessions = [finished(file) for file in files]
  for session, expected in zip(sessions, (SCALARS, SCALARS[1:]), strict=True):
    rows = [
      {i.nested_key[0]: json.loads(i.value_json) for i in r.history.item}
      for r in session
      if r.HasField('history')
    ]
    assert [
      {k: v for k, v in row.items() if not k.startswith('_')} for row in rows
    ] == expected


def finished(path, seconds=60):
  """The records of a file, which a process of W&B may still be writing."""
  from google.protobuf.message import DecodeError

  for _ in range(10 * seconds):
    with contextlib.suppress(DecodeError, IndexError):  # It may be cut off.
      found = list(wandb_records(path))
      if any(record.HasField('exit') for record in found):
        return found
    time.sleep(0.1)
  raise TimeoutError(f'{path} has no end')


def wandb_records(path):
  """The records of a file of W&B, which is a log in LevelDB's format."""
  from wandb.proto.wandb_internal_pb2 import Record

  block, header = 2**15, 7
  content, at, parts = path.read_bytes(), header, b''
  while at < len(content):
    left = block - at % block
    if left < header:
      at += left
      continue
    length, kind = content[at + 4] + 256 * content[at + 5], content[at + 6]
    parts += content[at + header : at + header + length]
    at += header + length
    if kind in (1, 4):  # A whole record, or its last part.
      yield Record.FromString(parts)
      parts = b''


def mlflow_run(workdir, monkeypatch):
  """The only run in a folder, and `{name: [(step, value)]}`, by step."""
  from mlflow import MlflowClient

  monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true')
  client = MlflowClient((workdir / 'mlruns').as_uri())
  experiment = client.get_experiment_by_name('selsync_jax')
  (run,) = client.search_runs([experiment.experiment_id])
  return run, {
    name: sorted(
      (metric.step, metric.value)
      for metric in client.get_metric_history(run.info.run_id, name)
    )
    for name in run.data.metrics
  }


@pytest.mark.slow
def test_mlflow_has_the_rows_of_all_sessions_under_one_id(
  tmp_path, monkeypatch
):
  recorded.write_rows(tmp_path, recorded.ROWS, 'mlflow', epochs=1.0)
  recorded.write_rows(tmp_path, recorded.ROWS[1:], 'mlflow', epochs=2.0)
  run, metrics = mlflow_run(tmp_path, monkeypatch)
  assert run.info.run_id == (tmp_path / 'mlflow.id').read_text().strip()
  assert run.info.status == 'FINISHED'
  assert run.data.params['epochs'] == '1.0'
  assert metrics == {
    name: sorted(
      (row['step'], row[name])
      for row in (*SCALARS, *SCALARS[1:])
      if name in row
    )
    for name in SCALARS[-1]
  }


@pytest.mark.slow
def test_mlflow_gets_the_rows_that_a_killed_session_did_not_send(
  tmp_path, monkeypatch
):
  from selsync_jax.runs.destinations.mlflow_run import MlflowRun

  killed = MlflowRun(tmp_path, 0, {})
  killed.write(SCALARS[0])
  recorded.write_rows(tmp_path, recorded.ROWS[:2])
  recorded.write_rows(tmp_path, recorded.ROWS[2:], 'mlflow')
  _, metrics = mlflow_run(tmp_path, monkeypatch)
  assert metrics['loss'] == [
    (row['step'], row['loss']) for row in recorded.ROWS
  ]
