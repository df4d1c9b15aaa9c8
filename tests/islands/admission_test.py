"""Islands that rejoin continue at the others' step."""

from concurrent import futures
import re
import threading

import jax
import numpy as np
import pytest

from selsync_jax.config import RunError
from selsync_jax.islands import joining, server
from selsync_jax.islands.exchange import FlightPeers
from selsync_jax.islands.replay import replay
from selsync_jax.runs import checkpoints
from selsync_jax.training.train import train_and_evaluate
from tests.support import short_runs
from tests.support.island_runs import participants

N, DEAD, LAST = 3, 1, 5  # The number of steps is LAST.
LATE = {'steps': 3, 'keep': 0.5, 'extrapolate': 0.5}


class Death(Exception):
  """The end of an island, as others see it when it is killed."""


@pytest.fixture
def compiled(monkeypatch):
  """Programs that a rejoining island compiles after it was admitted.

  One island dies, and the others wait until it has rejoined and prepared.
  """
  died, came, entered = (threading.Event() for _ in range(3))
  threads, names = set(), []

  class Mortal(FlightPeers):
    @property
    def prepares(self):
      if super().prepares:
        threads.add(threading.get_ident())
      return super().prepares

    def enter(self):
      if self.prepares:
        came.set()
        super().enter()
        entered.set()

    def _arrive(self, *arrival):
      if self.index != DEAD and died.is_set():
        assert came.wait(60)
      return super()._arrive(*arrival)

    def reach(self, step):
      if self.index == DEAD and step == LAST and not died.is_set():
        died.set()
        raise Death
      super().reach(step)

  def listen(event, seconds, **about):
    del seconds
    is_its = entered.is_set() and threading.get_ident() in threads
    if is_its and event.endswith('backend_compile_duration'):
      names.append(about)

  monkeypatch.setattr(joining, 'FlightPeers', Mortal)
  jax.monitoring.register_event_duration_secs_listener(listen)
  yield names
  jax.monitoring.unregister_event_duration_listener(listen)
  assert entered.is_set()


@pytest.fixture
def train(compiled, tmp_path, one_saves_at_a_time, monkeypatch):
  """Trains islands in threads; returns the summary of each."""

  def train(method, **fields):
    def island(i, invitation):
      config = short_runs.config(method, workers=N, **fields)
      config.mapper = 'auto'
      others = joining.join(invitation, f'{i}', 'a run', 30.0, welcomes=True)
      with others:
        workdir = tmp_path / f'{i}'
        islands = participants(others, workdir)
        if config.pace == 'free':
          # The second and the third rest in every other step.
          islands.watch.add = lambda seconds: None
          monkeypatch.setattr(islands.watch, '_seconds', [1.0 + bool(i)])
        return train_and_evaluate(config, workdir, participants=islands)

    def worker(i, invitation):
      if i == DEAD:
        with pytest.raises(RunError, match='Death'):
          island(i, invitation)
      return island(i, invitation)

    with (
      server.CoordinatorServer(N, minimum=2, grace=60.0) as point,
      futures.ThreadPoolExecutor(N) as pool,
    ):
      work = [pool.submit(worker, i, point.invitation) for i in range(N)]
      return [each.result(timeout=120) for each in work]

  return train


@pytest.mark.slow
@pytest.mark.parametrize(
  'method, fields',
  [
    ('selsync', {'sync__delta': 0.05, 'sync__delay': LATE}),
    ('diloco', {'sync__period': 4}),
    ('bsp', {}),
    ('local_sgd', {'sync__period': 4, 'pace': 'free'}),
  ],
)
def test_one_that_comes_again_ends_as_the_others(
  method, fields, train, compiled, tmp_path, capsys
):
  each = train(method, **fields)
  assert not compiled
  (at,) = map(
    int, re.findall(r'resuming from step (\d+)', capsys.readouterr().out)
  )
  assert LAST <= at < short_runs.STEPS
  (before,) = [r for r in short_runs.rows(tmp_path / '0') if r['step'] == at]
  assert before['synced'] or 'sync__delay' in fields  # Nothing counts twice.
  rows = [
    [row for row in short_runs.rows(tmp_path / f'{i}') if row['step'] > at]
    for i in range(N)
  ]
  assert [row['step'] for row in rows[DEAD]] == [
    *range(at + 1, short_runs.STEPS + 1)
  ]
  for i in range(N):
    for name in ('steps', 'samples', 'validation_loss', 'test_loss'):
      assert each[i][name] == each[DEAD][name], name
    for row, other in zip(rows[i], rows[DEAD], strict=True):
      assert len(row['relative_changes']) == N
      for name in ('synced', 'loss', 'relative_changes', 'step'):
        np.testing.assert_equal(row[name], other[name], name)
  kept = checkpoints.peek_record(tmp_path / '0')['leases']
  assert not kept['returned']  # Lost batches were read again.
  if method == 'bsp':  # It loses nothing, and all steps read a batch.
    missed = at - LAST
    assert sum(kept['read']) == N * short_runs.STEPS - missed
  compared = replay(tmp_path)
  assert compared[f'{DEAD}'] > 2
