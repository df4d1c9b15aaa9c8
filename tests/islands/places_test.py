"""Islands that do not come to the same places, or send what does not fit."""

from concurrent import futures
import contextlib
import functools
import itertools
import json
import queue
import re
import threading

import jax.numpy as jnp
import numpy as np
import pyarrow as arrow
import pytest

import selsync_jax as ss
from selsync_jax import user_errors
from selsync_jax.cluster.protocol import generation, messages
from selsync_jax.cluster.protocol.member import ApartError, Member
from selsync_jax.config import ConfigError, RunError
from selsync_jax.islands import exchange, joining, server
from selsync_jax.islands.flight import Outbox
from selsync_jax.islands.program import complete
from tests.support.meetings import met

LARGE = np.zeros(2000, np.float32)


@pytest.fixture
def join():
  """Joins islands, some of which may end without the others."""
  with contextlib.ExitStack() as stack:

    def join(names, minimum=None):
      return stack.enter_context(met(names, minimum=minimum))[1]

    yield join


def mean(x):
  return lambda peers: complete(
    peers, lambda peers: peers.exchange([x] * peers.size)
  )


@pytest.mark.parametrize(
  'averager, minimum, place',
  [
    (ss.mean(), 2, r'the average of step 11 \(psum of float32\[2000\]'),
    (ss.mean(), 1, r'the average of step 11 \(psum of float32\[2000\]'),
    (ss.delayed(ss.mean(), 1), 1, 'the arrival of a late average in step 1'),
  ],
)
def test_custom_loops_of_10_and_15_steps_end_in_a_line(
  averager, minimum, place, pool
):
  """Even if one island could continue alone."""

  def train(invitation, name, steps):
    params = {'w': jnp.zeros(2000)}
    strategy = ss.Strategy(ss.every(2 if averager.steps_late else 1), averager)
    island = ss.Island.join(str(invitation), name, params, strategy)
    with island:
      for _ in range(steps):
        params = island.after_step(params, params)
      island.leave(params)

  with server.CoordinatorServer(2, minimum=minimum) as point:
    calls = [
      pool.submit(train, point.invitation, name, steps)
      for name, steps in (('maui', 10), ('oahu', 15))
    ]
    line = (
      '^the islands have come to different places: maui is at the end after '
      f'step 10; oahu is at {place}'
    )
    for call in calls:
      with pytest.raises(ApartError, match=line):
        call.result(timeout=30)


def test_one_that_has_taken_no_step_yet_may_average_with_the_others(join, pool):
  """Like an island that was admitted and averages in its first step."""
  each = join('ab')
  each[0].reach(374)
  channels = [peers.channel('behind') for peers in each]
  for channel in channels:
    channel.departs()
  each[1].reach(375)  # It continues meanwhile.
  calls = [pool.submit(each.exchange, [LARGE] * 2) for each in channels]
  assert [len(call.result(timeout=20)) for call in calls] == [2, 2]
  each[0].reach(375)


def test_the_odd_one_of_three_ends_and_the_others_go_on(join, pool):
  each, types = join('abc', 2), ['float32', 'float64', 'float32']
  calls = [
    pool.submit(mean(LARGE.astype(dtype)), peers)
    for dtype, peers in zip(types, each, strict=True)
  ]
  with pytest.raises(RunError, match=r'b is at .*float64\[2000\]'):
    calls[1].result(timeout=20)
  assert [len(calls[i].result(timeout=20)) for i in (0, 2)] == [2, 2]


WRONG = {
  'another type': lambda message: message.astype('float64'),
  'another length': lambda message: message[:-1],
}


@pytest.mark.parametrize('wrong', WRONG)
def test_who_sends_a_wrong_message_ends_and_not_whoever_gets_it(
  wrong, join, pool, monkeypatch
):
  each, put = join('abc', 2), Outbox.put

  def put_wrong(box, key, messages, sends):
    if box is each[1]._outbox:
      messages = [WRONG[wrong](messages[0])] * len(messages)
    put(box, key, messages, sends)

  monkeypatch.setattr(Outbox, 'put', put_wrong)
  calls = [pool.submit(mean(LARGE), peers) for peers in each]
  with pytest.raises(
    RunError, match=r'^island b sends a.* at the average of s'
  ):
    calls[1].result(timeout=20)
  assert [len(calls[i].result(timeout=20)) for i in (0, 2)] == [2, 2]


def test_a_wrong_message_from_an_island_that_has_not_arrived_is_not_forgotten(
  join, pool, monkeypatch
):
  """The coordinator cannot judge it before it hears of that island's place."""
  each, accuse, accused = join('ab', 1), Member.accuse, threading.Event()

  def noted(*args):
    accuse(*args)
    accused.set()

  monkeypatch.setattr(Member, 'accuse', noted)
  each[1]._outbox.put((1, '', 1), [LARGE[:-1]] * 2)
  receiver = pool.submit(mean(LARGE), each[0])
  assert accused.wait(20)
  sender = pool.submit(mean(LARGE), each[1])
  with pytest.raises(RunError, match='sends a'):
    [call.result(timeout=20) for call in (receiver, sender)]
  for peers in each:
    peers.fail()


ARRAY = {'array': messages.encode(messages.Array('float32', (2000,)))}
STREAMS = {  # The announced array, and the batches that follow.
  'no array': ({}, [[[b'bytes']]]),
  'another array': ({'array': b'text'}, [[[b'bytes']]]),
  'no bytes': (ARRAY, [[['text']]]),
  'no row': (ARRAY, [[[]]]),
  'no end': (ARRAY, itertools.repeat([[b'']])),
}


@pytest.mark.parametrize('stream', STREAMS)
def test_a_stream_that_is_no_message_ends_its_sender(
  stream, join, pool, monkeypatch
):
  about, batches = STREAMS[stream]
  each, answer = join('abc', 2), Outbox.do_exchange
  monkeypatch.setattr(exchange, 'PIECE', 1 << 13)

  def answer_wrong(box, *call):
    if box is not each[1]._outbox:
      return answer(box, *call)
    writer, kind = call[-1], arrow.large_binary()
    if stream == 'no bytes':
      kind = arrow.large_string()
    schema = arrow.schema([('block', kind)], metadata=about)
    writer.begin(schema)
    for columns in batches:
      columns = [arrow.array(column, kind) for column in columns]
      writer.write_batch(arrow.record_batch(columns, schema=schema))

  monkeypatch.setattr(Outbox, 'do_exchange', answer_wrong)
  calls = [pool.submit(mean(LARGE), peers) for peers in each]
  with pytest.raises(RunError, match=r'^island b sends '):
    calls[1].result(timeout=20)
  assert [len(calls[i].result(timeout=20)) for i in (0, 2)] == [2, 2]


def test_a_loop_that_exits_with_a_reason_has_failed(join, pool):
  a, b = join('ab')

  def loop(peers):
    with peers:
      raise SystemExit('bad data')

  waiting = pool.submit(mean(LARGE), a)
  with pytest.raises(SystemExit):
    pool.submit(loop, b).result(timeout=20)
  line = r'^island b has failed: SystemExit: bad data$'
  with pytest.raises(RunError, match=line):
    waiting.result(timeout=20)


def test_it_is_said_for_whom_an_island_waits_where_and_since_when(
  join, pool, monkeypatch
):
  monkeypatch.setattr(generation, 'WAITING', 0.0)
  with server.CoordinatorServer(2) as point:
    told = queue.SimpleQueue()
    one = functools.partial(
      joining.join, point.invitation, run='a run', timeout=5.0, say=told.put
    )
    a, b = pool.map(one, 'ab')
    a.reach(119)
    call = pool.submit(mean(LARGE), a)
    while 'waits' not in (row := point.status()['islands'][0]):
      pass
    for line in (row['waits'], told.get(timeout=20)):
      assert line.startswith('waits for b at the average of step 120 (')
    b.reach(119)
    mean(LARGE)(b)
    call.result(timeout=20)
    futures.wait(pool.submit(peers.close) for peers in (a, b))


PARAMS = {'w': jnp.zeros(3)}


@pytest.mark.parametrize(
  'params, line',
  [
    ({}, 'the tree has no arrays'),
    ({'w': 1.0}, 'w is float; parameters must be arrays of numbers'),
    ({'w': jnp.zeros(2, bool)}, 'w is bool; parameters must be arrays'),
  ],
)
def test_parameters_that_cannot_be_averaged_are_refused_at_once(params, line):
  strategy = ss.Strategy(ss.every(1), ss.mean())
  with pytest.raises(ValueError, match=f'^params: {line}'):
    ss.Island.join('host:1/token/print', 'maui', params, strategy)


@pytest.mark.parametrize(
  'given, line',
  [
    ({'timeout': -1.0}, 'timeout=-1: must be positive'),
    ({'timeout': float('nan')}, 'timeout=nan: must be positive'),
    ({'limit': 10.0}, 'limit=10: must be at least 34380 bytes per second'),
    ({'limit': 0.0}, 'limit=0: must be at least'),
  ],
)
def test_a_timeout_or_limit_out_of_range_is_refused_at_once(given, line):
  strategy = ss.Strategy(ss.every(1), ss.mean())
  with pytest.raises(ConfigError, match=line):
    ss.Island.join('host:1/token/print', 'maui', PARAMS, strategy, **given)


def test_what_changes_in_a_loop_is_noticed():
  from selsync_jax.islands.board import Board

  strategy = ss.Strategy(ss.selsync(0.1), ss.mean())
  island = ss.Island(Board(1).peers(0), PARAMS, strategy)
  other = {'v': jnp.zeros(3), 'w': jnp.zeros(3)}
  wide = {'w': jnp.zeros(3, jnp.bfloat16)}
  for params, grads, line in [
    (PARAMS, other, 'grads: must have the 1 arrays'),
    (PARAMS, {'w': jnp.zeros(4)}, r'grads: w must be \[3\] as before'),
    (wide, PARAMS, r'params: w must be float32\[3\] as before, got bfloat16'),
  ]:
    with pytest.raises(ValueError, match=line):
      island.after_step(params, grads)
  broken = {'w': jnp.full(3, jnp.nan)}
  with pytest.raises(RunError, match="step 1: this island's are not finite"):
    island.after_step(broken, {'w': jnp.ones(3)})
  island.leave(PARAMS)
  with pytest.raises(RunError, match='after_step: this island has left'):
    island.after_step(PARAMS, PARAMS)


def test_what_differs_between_runs_is_named(pool, said):
  with server.CoordinatorServer(2, say=said.put) as point:
    join = functools.partial(joining.join, point.invitation, timeout=20.0)
    a = pool.submit(join, 'a', {'config.steps': 1, 'package jax': '1'})
    assert 'a has joined' in said.get(timeout=20)
    line = (
      'than a: config.steps is 2, not 1; package optax is 1, not missing; give'
    )
    with pytest.raises(RunError, match=re.escape(line)):
      join('b', {'config.steps': 2, 'package jax': '1', 'package optax': '1'})
    join('b', {'config.steps': 1, 'package jax': '1'}).fail()
    with pytest.raises(RunError):
      a.result(timeout=20).share(np.zeros(1))


def test_the_key_leaves_by_one_action_only(point_of_one):
  from tests.support.meetings import said_by_hand

  for what in ('anything', 'key ', ''):
    ask = messages.Told(json.dumps(what).encode())  # No island asks so.
    with said_by_hand(point_of_one, ask) as hear:
      found = hear()
      assert not isinstance(found, messages.Told)


@pytest.fixture
def point_of_one():
  with server.CoordinatorServer(1) as point:
    yield point


def test_the_loss_of_a_peer_is_no_error_of_the_users_code():
  """Frames of compiled libraries have names without a folder."""
  assert not user_errors.is_own('pyarrow/_flight.pyx')
  assert user_errors.is_own('/home/me/train.py')
