"""The file with everything that leaves an island."""

from concurrent import futures
import hashlib
import json

import jax.numpy as jnp
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.config import ConfigError
from selsync_jax.islands import flight
from selsync_jax.islands.server import CoordinatorServer

SIZE = 6000
NAMES = ('hawaii', 'maui', 'oahu')


def test_an_audit_has_every_byte_its_receiver_and_its_digest(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(flight, 'BLOCK', 1 << 10)
  counts, path = {}, tmp_path / 'audit.jsonl'  # Islands may share it.
  params = {'dense': {'w': jnp.arange(SIZE, dtype=jnp.float32)}}
  strategy = ss.Strategy(ss.every(1), ss.geometric_median())
  with (
    CoordinatorServer(3) as point,
    futures.ThreadPoolExecutor(3) as pool,
  ):

    def island(name):
      joined = ss.Island.join(
        str(point.invitation), name, params, strategy, audit=path
      )
      joined.leave(joined.after_step(params))
      counts[name] = joined._peers._link.member.done.sent_bytes

    list(pool.map(island, NAMES))
  share = np.arange(SIZE, dtype=np.float32).reshape(3, -1)
  every = [*map(json.loads, path.read_text().splitlines())]
  for i, name in enumerate(NAMES):
    rows = [row for row in every if row['island'] == name]
    sent = [row for row in rows if 'to' in row]
    assert sum(row['bytes'] for row in sent) == counts[name]
    (arrays,) = [row['arrays'] for row in rows if 'arrays' in row]
    assert arrays == {'dense/w': f'float32[{SIZE}]'}
    (gathered, *_), given = [
      [row for row in sent if row['operation'] == operation]
      for operation in ('exchange', 'all_to_all')
    ]
    assert gathered['bytes'] == share[i].nbytes
    others = [other for other in NAMES if other != name]
    assert sorted(row['to'] for row in given) == others
    for row in given:
      content = share[NAMES.index(row['to'])].tobytes()
      assert row['sha256'] == hashlib.sha256(content).hexdigest()
      assert (row['bytes'], row['start'], row['step']) == (len(content), 0, 1)
    votes = [row for row in sent if row['to'] == 'coordinator']
    assert any(row['operation'] == 'psum' for row in votes)  # Distances.


def test_an_audit_that_cannot_be_written_ends_the_island(tmp_path):
  params = {'w': jnp.zeros(3)}
  strategy = ss.Strategy(ss.every(1), ss.mean())
  path = tmp_path / 'missing' / 'audit.jsonl'
  with CoordinatorServer(1) as point, pytest.raises(ConfigError) as raised:
    ss.Island.join(str(point.invitation), 'maui', params, strategy, audit=path)
  assert str(raised.value) == f'audit={path}: No such file or directory'


def test_an_audit_that_fails_later_ends_its_island_with_the_reason(tmp_path):
  params, path = {'w': jnp.zeros(SIZE)}, tmp_path / 'audit.jsonl'
  strategy = ss.Strategy(ss.every(1), ss.mean())
  with (
    CoordinatorServer(2) as point,
    futures.ThreadPoolExecutor(2) as pool,
  ):

    def train(name, **given):
      invitation = str(point.invitation)
      with ss.Island.join(
        invitation, name, params, strategy, **given
      ) as island:
        if given:
          path.unlink()
          path.mkdir()  # Cannot be written any more.
        island.after_step(params)

    ends = pool.submit(train, 'maui', audit=path), pool.submit(train, 'oahu')
    own, others = [str(end.exception()) for end in ends]
  line = f'audit={path}: Is a directory'
  assert line in own
  assert f'maui has failed: {line}' in others
