"""Checkpoints: placement of the state, and refused checkpoints."""

import contextlib
import errno
import json
import os
import pathlib
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from selsync_jax.cluster import processes
from selsync_jax.config import RunError
from selsync_jax.devices import layout, mappers
from selsync_jax.runs import checkpoints
from selsync_jax.runs.checkpoints import CheckpointError, Checkpoints
from selsync_jax.runs.ledger import Totals
from selsync_jax.runs.store import Store

WORKERS = 4
RECORD = {
  'totals': {'steps': 8, 'skips': [], 'clock': {}},
  'workers': WORKERS,
  'batch_size': 32,
  'learning_rate': 0.1,
  'epoch': 1.0,
  'metrics': [[8, 0], [0, 0]],
  'config': {},
}


def worker_state():
  return {'w': np.arange(3, dtype=np.float32), 'count': np.int32(7)}


@contextlib.contextmanager
def opened(workdir, keep=2):
  checkpoints = Checkpoints(workdir)
  with checkpoints.opened(keep):
    yield checkpoints


def save(workdir, state, step=8):
  with opened(workdir) as saver:
    saver.save(step, state, RECORD)


@pytest.fixture
def saved(tmp_path, mapper):
  """A workdir with one checkpoint, and the state in it."""
  state = mappers.Vmap(WORKERS).stack(worker_state())
  state['w'] = state['w'] + np.arange(WORKERS, dtype=np.float32)[:, None]
  save(tmp_path, layout.choose(mapper, WORKERS).place(state))
  return tmp_path, state


def restored(workdir, mapper):
  like = layout.choose(mapper, WORKERS).abstract(worker_state())
  with opened(workdir) as saver:
    return saver.restore(like)


def test_every_worker_gets_its_own_state_back(saved, mapper):
  workdir, state = saved
  after = restored(workdir, mapper)
  assert after.keys() == state.keys()
  for name, array in state.items():
    assert after[name].dtype == array.dtype
    np.testing.assert_array_equal(after[name], array)


def test_a_state_that_came_as_a_message_is_placed_and_then_saved(saved, mapper):
  workdir, state = saved
  mapper = layout.choose(mapper, WORKERS)
  record = RECORD | {'totals': RECORD['totals'] | {'steps': 9}}
  message = checkpoints.packed_state(mapper.place(state), record)
  like = mapper.abstract(worker_state())
  arrived = Checkpoints(
    workdir, choose=lambda _: checkpoints.Choice(9, message)
  )
  assert arrived.record['totals']['steps'] == 9
  with arrived.opened(keep=2):
    found = arrived.restore(like)
    for name in state:
      np.testing.assert_array_equal(found[name], state[name])
      assert found[name].sharding == like[name].sharding
  again = Checkpoints(workdir)
  assert again.record == arrived.record
  with again.opened(keep=2):
    found = again.restore(like)
    jax.tree.map(np.testing.assert_array_equal, found, mapper.place(state))


def test_restored_state_lies_where_the_results_of_a_step_lie(saved, mapper):
  workdir, _ = saved
  placed = layout.choose(mapper, WORKERS).replicate(worker_state)
  for name, array in restored(workdir, mapper).items():
    assert array.sharding == placed[name].sharding


def test_a_step_on_restored_state_is_compiled_once(saved, mapper, caplog):
  workdir, _ = saved

  def add_one(state):
    return jax.tree.map(lambda x: x + 1, state)

  step = layout.choose(mapper, WORKERS).map_workers(add_one, donate=(0,))
  state = restored(workdir, mapper)
  with jax.log_compiles():
    for _ in range(3):
      state = step(state)
  compiled = [m for m in caplog.messages if m.startswith('Compiling')]
  assert len(compiled) == 1


@pytest.mark.parametrize('mapper', ['vmap'], indirect=True)
@pytest.mark.parametrize('to', ['devices', 'host'])
@pytest.mark.parametrize(
  'edited, words',
  [
    ({'w': np.zeros(4, np.float32)}, 'w is (3,) there and (4,) here'),
    ({'b': np.float32(0)}, 'b is missing there and () here'),
    ({'w': {}}, 'w is (3,) there and missing here'),
  ],
)
def test_a_checkpoint_of_another_model_is_refused_and_kept(
  saved, mapper, to, edited, words
):
  workdir, written = saved
  made, state = layout.choose(mapper, WORKERS), worker_state() | edited
  like = {
    'devices': made.abstract(state),
    'host': made.abstract_saved(state, WORKERS),
  }[to]
  with (
    opened(workdir) as saver,
    pytest.raises(CheckpointError) as error,
  ):
    saver.restore(like)
  assert str(error.value) == (
    f'{workdir}/checkpoints/8 does not fit this model or method: {words}; '
    'undo the change, resume with the version that wrote it, or start over '
    'with --restart'
  )
  np.testing.assert_array_equal(restored(workdir, mapper)['w'], written['w'])


def set_format(workdir, number, step=8):
  """Changes the format that a checkpoint names; `None` removes it."""
  path = workdir / 'checkpoints' / str(step) / 'record' / 'metadata'
  record = json.loads(path.read_text())
  assert record.pop('format') == checkpoints.FORMAT
  if number is not None:
    record['format'] = number
  path.write_text(json.dumps(record))
  checkpoints.write_manifest(path.parents[1])
  return path.parents[1]


LATER = checkpoints.FORMAT + 1


@pytest.mark.parametrize('mapper', ['vmap'], indirect=True)
@pytest.mark.parametrize(
  'number, words',
  [
    (None, 'an earlier version (format 1)'),
    (1, 'an earlier version (format 1)'),
    (LATER, f'a later version (format {LATER})'),
  ],
)
def test_a_checkpoint_of_another_format_is_refused(saved, number, words):
  """The newest checkpoint decides whose record can be read."""
  workdir, state = saved
  save(workdir, state, step=10)
  path = set_format(workdir, number)
  checkpoints.peek_record(workdir)
  newest = workdir / 'checkpoints' / '10' / 'record' / 'metadata'
  newest.write_text('{"for')  # Like on a full disk.
  with pytest.raises(CheckpointError) as error:
    checkpoints.peek_record(workdir)
  assert str(error.value) == (
    f'{path} was written by {words}, which this one cannot read; use that '
    'version, or start over with --restart'
  )


def test_a_new_workdir_has_no_format(tmp_path):
  assert checkpoints.peek_record(tmp_path / 'new') is None


@pytest.mark.parametrize('mapper', ['vmap'], indirect=True)
def test_a_save_that_has_failed_does_not_wait_for_the_others(
  saved, monkeypatch
):
  workdir, state = saved
  errors = []  # Errors being handled at barriers.

  def fail(folder):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  def barrier(**_):
    errors.append(sys.exception())

  monkeypatch.setattr(ocp.multihost, 'get_barrier_sync_fn', lambda **_: barrier)
  monkeypatch.setattr(checkpoints, 'write_manifest', fail)
  with opened(workdir, keep=1) as saver:
    saver.save(10, state, RECORD)
    with pytest.raises(CheckpointError, match='No space left on device'):
      saver.wait()
    assert saver.newest == 'step 8'  # The old one stays.
  assert errors and not any(errors)


@pytest.mark.parametrize('mapper', ['vmap'], indirect=True)
def test_a_checkpoint_that_cannot_be_read_is_not_damaged(saved, monkeypatch):
  workdir, _ = saved

  def fail(path):
    raise OSError(errno.EIO, os.strerror(errno.EIO), path)

  monkeypatch.setattr(pathlib.Path, 'read_bytes', fail)
  with pytest.raises(RunError, match='cannot be read: Input/output error'):
    Checkpoints(workdir)


@pytest.mark.parametrize('mapper', ['vmap'], indirect=True)
def test_a_process_that_sees_files_late_learns_of_them_from_the_first(
  saved, tmp_path_factory, monkeypatch
):
  workdir, _ = saved
  first = Checkpoints(workdir)
  sent = iter([[8, first.record], {'steps': 8}])
  monkeypatch.setattr(processes, 'is_first', lambda: False)
  monkeypatch.setattr(processes, 'json_from_first', lambda _: next(sent))
  other = Store(tmp_path_factory.mktemp('late'), {})
  assert other.record == first.record is not None
  assert other.outcome(Totals(steps=8), 8) == {'steps': 8}
