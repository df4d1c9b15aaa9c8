"""Messages over Arrow Flight, and access to them."""

from concurrent import futures
import contextlib
import itertools
import queue
import sys
import threading
import time

from jax import lax
import numpy as np
from pyarrow import flight as arrow
import pytest

import selsync_jax as ss
from selsync_jax.cluster.protocol import messages
from selsync_jax.cluster.protocol.member import Member, Regrouped
from selsync_jax.config import RunError
from selsync_jax.islands import exchange, flight
from selsync_jax.islands.credentials import create_credentials, host_name
from selsync_jax.islands.flight import Outbox
from selsync_jax.islands.program import complete, cut
from tests.support import live_runs
from tests.support.meetings import met

N = 3
TYPES = (np.dtype('float32'), np.dtype('bfloat16'))
NAMES = ('hawaii', 'maui', 'oahu')
WANTED = messages.encode(messages.Piece((1, '', 1), 0, 0))


@pytest.fixture
def islands():
  with met(NAMES, timeout=30.0) as (_, islands, _):
    yield islands


def test_a_mean_arrives_whatever_its_length_and_type(islands, monkeypatch):
  monkeypatch.setattr(flight, 'BLOCK', 1 << 18)
  for room in (exchange, flight):
    monkeypatch.setattr(room, 'PIECE', 1 << 20)
  rows = np.random.default_rng(0).normal(size=(N, 1_000_001))

  def mean(x):
    large = lax.pmean(x, ss.AXIS)  # In several pieces, of several blocks.
    few = lax.pmean(x[:3], ss.AXIS), lax.pmean(x[0], ss.AXIS)
    return large, *few, lax.psum(x[:0], ss.AXIS)

  run = cut(mean)

  def island(peers):
    return [run(peers, np.asarray(rows[peers.index], d)) for d in TYPES]

  with futures.ThreadPoolExecutor(N) as pool:
    found = list(pool.map(island, islands))
  for dtype, tolerance, results in zip(
    TYPES, (1e-6, 1e-2), zip(*found, strict=True), strict=True
  ):
    expected = rows.astype(dtype).astype(float).mean(0)
    for large, few, one, none in results:
      assert large.dtype == few.dtype == none.dtype == dtype
      np.testing.assert_array_equal(large, results[0][0])
      np.testing.assert_allclose(large, expected, rtol=0.1, atol=tolerance)
      np.testing.assert_array_equal(few, large[:3])
      np.testing.assert_array_equal(one, large[0], strict=True)
      assert none.shape == (0,)


def test_channels_are_apart(islands):
  def talk(channel, message):
    return [channel.exchange([message] * N), channel.share(message)]

  with futures.ThreadPoolExecutor(4 * N) as pool:
    work = []
    for name in ('one', 'other'):
      for peers in islands[:: 1 if name == 'one' else -1]:
        message = np.array([peers.index, len(name)])
        channel = peers.channel(name)
        work.append((name, pool.submit(talk, channel, message)))
  for name, result in work:
    expected = [[[i, len(name)] for i in range(N)]] * 2
    np.testing.assert_array_equal(result.result(), expected)


def unreachable(box, *call):
  raise arrow.FlightUnavailableError('the link is cut')


def silent(box, *call):
  with box.changed:
    box.changed.wait_for(lambda: box.is_closed, 30)
  raise arrow.FlightTimedOutError('too late')


ANSWERS = unreachable, pytest.param(silent, marks=pytest.mark.slow)


@pytest.fixture
def accused(monkeypatch):
  """Makes islands impatient; returns the islands that others accuse."""
  names, accuse = queue.SimpleQueue(), Member.accuse

  def accuse_and_note(self, place, name, why=''):
    accuse(self, place, name, why)
    names.put(name)

  monkeypatch.setattr(Member, 'accuse', accuse_and_note)
  monkeypatch.setattr(exchange, 'PATIENCE', -1.0)  # Of 2 * timeout.
  return names


@pytest.mark.parametrize('answer', ANSWERS)
def test_one_of_two_that_do_not_reach_each_other_is_ended(
  answer, accused, monkeypatch
):
  """Although both reach the coordinator."""
  monkeypatch.setattr(Outbox, 'do_exchange', answer)
  with (
    met(('maui', 'oahu'), timeout=1.5) as (_, islands, _),
    futures.ThreadPoolExecutor(2) as pool,
  ):
    calls = [
      pool.submit(peers.exchange, [np.zeros(1)] * 2) for peers in islands
    ]
    for call in calls:
      with pytest.raises(
        RunError, match=r'^island \w+ cannot be reached by \w'
      ):
        call.result(timeout=20)


@pytest.mark.slow
@pytest.mark.parametrize('fails', ANSWERS)
def test_who_is_reached_again_stays(fails, accused, monkeypatch):
  """A connection that a network has forgotten is replaced at once."""
  answer, calls = Outbox.do_exchange, itertools.count()

  def fails_for_a_while(box, *call):
    is_cut = accused.empty() if fails is unreachable else not next(calls)
    (fails if is_cut else answer)(box, *call)

  monkeypatch.setattr(Outbox, 'do_exchange', fails_for_a_while)
  with (
    met(('maui', 'oahu'), timeout=1.5) as (_, islands, _),
    futures.ThreadPoolExecutor(2) as pool,
  ):
    call = pool.submit(islands[0].exchange, [np.zeros(1)] * 2)
    islands[1].exchange([np.zeros(1)] * 2)
    call.result(timeout=20)
    assert accused.empty() == (fails is silent)
    time.sleep(2.0)  # Long enough to end an accused island.
    calls = [pool.submit(peers.share, np.ones(1)) for peers in islands]
    assert [np.sum(each.result(timeout=20)) for each in calls] == [2, 2]


LOOPS = """
import threading
import numpy as np
from selsync_jax.islands import joining, server
point = server.CoordinatorServer(2)
def loop(name):
  peers = joining.join(point.invitation, name, 'a run')
  threading.main_thread().join()
  print(f'{np.sum(peers.exchange([np.ones(1)] * 2))}\\n', end='')
  peers.close()
for name in 'ab':
  threading.Thread(target=loop, args=name).start()
"""


@pytest.mark.slow
def test_a_loop_may_outlive_the_main_thread():
  done = live_runs.run(sys.executable, '-c', LOOPS)
  assert (done.stdout, done.returncode) == ('2.0\n2.0\n', 0), done.stderr


def test_what_has_been_completed_is_kept_no_longer(islands):
  def exchange(peers):
    complete(peers, lambda peers: peers.exchange([np.ones(3)] * peers.size))
    assert not peers._outbox._messages

  with futures.ThreadPoolExecutor(N) as pool:
    [*pool.map(exchange, islands)]


def test_what_still_travels_ends_when_all_leave(islands):
  with futures.ThreadPoolExecutor(2 * N) as pool:
    channels = [peers.channel('behind') for peers in islands[:2]]
    late = [pool.submit(each.exchange, [np.ones(3)] * N) for each in channels]
    futures.wait(pool.submit(peers.close) for peers in islands)
    for each in late:
      with pytest.raises(RunError, match=r'^this island has left$'):
        each.result(timeout=20)


def test_calls_to_a_frozen_island_end_when_the_others_go_on(monkeypatch):
  """Long before their deadlines, on all channels."""
  answer = Outbox.do_exchange
  asked, awake = threading.Semaphore(0), threading.Event()

  def frozen(box, *call):
    if box is maui._outbox:
      asked.release()
      assert awake.wait(60)
    answer(box, *call)

  def exchange(peers):
    return peers.exchange([np.ones(3)] * peers.size)

  monkeypatch.setattr(Outbox, 'do_exchange', frozen)
  with (
    met(NAMES, timeout=30.0, minimum=2) as (_, (hawaii, maui, oahu), _),
    futures.ThreadPoolExecutor(4) as pool,
    contextlib.ExitStack() as stack,
  ):
    stack.callback(awake.set)
    others = hawaii, oahu
    channels = [*others, *(peers.channel('behind') for peers in others)]
    calls = [pool.submit(exchange, peers) for peers in channels]
    assert all(asked.acquire(timeout=20) for _ in calls)
    maui._link.close(maui._link.member.fail)
    for call in calls:
      with pytest.raises(Regrouped):
        call.result(timeout=20)
    again = [pool.submit(complete, peers, exchange) for peers in others]
    assert [len(each.result(timeout=20)) for each in again] == [2, 2]


def test_who_reads_no_further_does_not_keep_one_that_ends(monkeypatch):
  monkeypatch.setattr(flight, 'CLOSING', 0.2)
  credentials, large = (
    create_credentials(),
    np.zeros(1 << 26, np.uint8),
  )
  with (
    Outbox('127.0.0.1:0', credentials, 'maui', '') as box,
    futures.ThreadPoolExecutor(1) as pool,
  ):
    box.put((1, '', 1), [large])
    with flight.client(
      f'127.0.0.1:{box.port}',
      credentials.certificate,
      host_name(credentials.token, 'maui'),
    ) as us:
      wanted = arrow.FlightDescriptor.for_command(WANTED)
      options = flight.call_options(credentials.token, 'maui', 120)
      _, reader = us.do_exchange(wanted, options)
      assert reader.schema  # It has begun.
      pool.submit(box.shutdown).result(timeout=20)
      reader.cancel()


def test_a_stranger_reads_nothing():
  credentials, other = create_credentials(), create_credentials()
  token = credentials.token
  name = host_name(token, 'maui')
  with Outbox('127.0.0.1:0', credentials, 'maui', '') as box:
    box.put((1, '', 1), [np.zeros(1)])
    address = f'127.0.0.1:{box.port}'
    ours = flight.client(address, credentials.certificate, name)
    cases = {
      'no token': (ours, arrow.FlightCallOptions(timeout=5)),
      'another token': (ours, flight.call_options(token.swapcase(), 'maui', 5)),
      'another island': (ours, flight.call_options(token, 'oahu', 5)),
      'another certificate': (
        flight.client(address, other.certificate, name),
        flight.call_options(token, 'maui', 5),
      ),
      'no TLS': (
        arrow.FlightClient(f'grpc://{address}'),
        flight.call_options(token, 'maui', 5),
      ),
    }
    wanted = arrow.FlightDescriptor.for_command(WANTED)

    def read(client, options):
      writer, reader = client.do_exchange(wanted, options)
      with writer:
        return reader.read_all()

    for case in cases.values():
      with pytest.raises(arrow.FlightError):
        read(*case)
    read(ours, flight.call_options(token, 'maui', 5))
