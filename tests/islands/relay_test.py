"""Islands that only dial out, and the coordinator that calls them."""

from concurrent import futures
import contextlib
import functools
import os
import queue
import socket
import ssl
import sys
import threading

import numpy as np
from pyarrow import flight as arrow
import pytest

from selsync_jax.cluster.connection import listen_everywhere
from selsync_jax.islands import joining, relay
from selsync_jax.islands.credentials import client_context, create_credentials
from selsync_jax.islands.flight import Outbox
from selsync_jax.islands.program import complete
from selsync_jax.islands.relay import DialBack, Relay
from selsync_jax.islands.server import CoordinatorServer
from tests.support import live_runs
from tests.support.emulated import missing
from tests.support.meetings import met

PROXIES = 'grpc_proxy', 'http_proxy', 'https_proxy', 'all_proxy'
LARGE = np.random.default_rng(0).normal(size=(2, 300_000))


def means(pool, islands):
  """The mean of `LARGE`, on each of two islands."""
  calls = [
    pool.submit(peers.exchange, [LARGE[peers.index]] * 2) for peers in islands
  ]
  return [np.mean(call.result(timeout=30), 0) for call in calls]


def unreachable(*call):
  raise arrow.FlightUnavailableError('the way is barred')


@pytest.mark.parametrize('asked', [True, False], ids=['asked', 'by_itself'])
def test_islands_that_only_dial_out_get_equal_bits(
  asked, said, pool, monkeypatch
):
  if not asked:
    monkeypatch.setattr(Outbox, 'list_actions', unreachable)
  with met('ab', relay=asked, say=said.put) as (_, islands, _):
    for found in means(pool, islands):
      np.testing.assert_array_equal(found, LARGE.mean(0))
  lines = [said.get() for _ in range(said.qsize())]
  for name in 'ab':
    line = f'messages of {name} pass through this coordinator'
    assert lines.count(line) == 1


def test_a_coordinator_that_is_started_again_calls_them_again(pool):
  credentials = create_credentials()
  serve = functools.partial(CoordinatorServer, 2, credentials=credentials)

  def average(peers):
    return np.mean(peers.exchange([LARGE[peers.index]] * 2), 0)

  with serve() as point:
    join = functools.partial(joining.join, point.invitation, relay=True)
    calls = [pool.submit(join, name, 'a run') for name in 'ab']
    islands = [call.result(timeout=20) for call in calls]
    means(pool, islands)
  with serve(port=point.port):
    calls = [pool.submit(complete, peers, average) for peers in islands]
    for call in calls:
      np.testing.assert_array_equal(call.result(timeout=30), LARGE.mean(0))
    futures.wait(pool.submit(peers.close) for peers in islands)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason='needs IPv6')
def test_islands_meet_over_ipv6_and_over_no_relay(said, pool):
  with met('ab', host='::1', say=said.put) as (point, islands, _):
    assert point.invitation.address == f'[::1]:{point.port}'
    for found in means(pool, islands):
      np.testing.assert_array_equal(found, LARGE.mean(0))
  lines = [said.get() for _ in range(said.qsize())]
  assert 'joined from [::1]:' in lines[0]
  assert not [line for line in lines if 'pass through' in line]


@pytest.mark.parametrize('asked', [True, False], ids=['relayed', 'directly'])
def test_no_proxy_of_the_environment_is_asked(asked, pool, monkeypatch):
  for name in PROXIES:
    monkeypatch.setenv(name, 'http://127.0.0.1:9')
  with met('ab', relay=asked) as (_, islands, _):
    for found in means(pool, islands):
      np.testing.assert_array_equal(found, LARGE.mean(0))


class Echo:
  """A server that sends back what it gets, and says when a caller leaves."""

  def __init__(self, stack):
    self.listening = stack.enter_context(socket.create_server(('127.0.0.1', 0)))
    self.address = f'127.0.0.1:{self.listening.getsockname()[1]}'
    self.left = queue.SimpleQueue()
    threading.Thread(target=self._serve, daemon=True).start()

  def _serve(self):
    with contextlib.suppress(OSError):
      while True:
        caller, _ = self.listening.accept()
        threading.Thread(target=self._echo, args=(caller,), daemon=True).start()

  def _echo(self, caller):
    with caller:
      while data := caller.recv(1 << 16):
        caller.sendall(data)
    self.left.put(True)


NAME = f'maui{relay.SUFFIX}'


@pytest.fixture
def relayed():
  """The port of a relay to one island, which echoes, and its other callers."""
  with contextlib.ExitStack() as stack:
    others, echo = queue.SimpleQueue(), Echo(stack)
    listening = listen_everywhere(0)
    port = listening.getsockname()[1]
    back = DialBack(f'127.0.0.1:{port}', echo.address)
    stack.callback(back.shutdown)

    def summon(name, ticket):
      found = futures.Future()
      found.set_result(name == NAME)
      if name == NAME:
        back.called(ticket)
      return found

    relay_ = Relay(listening, 1, summon, others.put)
    stack.callback(relay_.shutdown)
    yield port, echo, others


def hello(name):
  """The first bytes that a TLS client sends to a host of this name."""
  outgoing = ssl.MemoryBIO()
  tls = client_context().wrap_bio(
    ssl.MemoryBIO(), outgoing, server_hostname=name
  )
  with contextlib.suppress(ssl.SSLWantReadError):
    tls.do_handshake()
  return outgoing.read()


def dialed(port, *parts):
  """A connection to a port, which sends these bytes."""
  caller = socket.create_connection(('127.0.0.1', port), 20)
  for part in parts:
    caller.sendall(part)
  return caller


def test_every_byte_passes_both_ways_until_both_ends_have_closed(relayed):
  port, echo, _ = relayed
  sent = hello(NAME) + os.urandom(1 << 23)
  callers = [dialed(port, sent[:100]) for _ in range(3)]
  for caller in callers:
    with caller, caller.makefile('rb') as file:
      send = threading.Thread(target=caller.sendall, args=(sent[100:],))
      send.start()
      assert file.read(len(sent)) == sent
      send.join()
      caller.shutdown(socket.SHUT_WR)
      assert file.read() == b''
    assert echo.left.get(timeout=20)


@pytest.mark.parametrize(
  'first', [hello(f'oahu{relay.SUFFIX}'), b'selsync ticket ' + b'0' * 32]
)
def test_who_knows_no_island_and_no_ticket_is_cut_off(relayed, first):
  port, _, others = relayed
  with dialed(port, first) as caller, contextlib.suppress(ConnectionResetError):
    assert caller.recv(1) == b''
  assert others.empty()


@pytest.mark.parametrize('first', [hello('maui'), b'GET / HTTP/1.0\r\n\r\n'])
def test_others_are_handed_over_with_all_that_they_have_said(relayed, first):
  port, _, others = relayed
  with dialed(port, first), others.get(timeout=20) as taken:
    assert (
      taken.recv(1 << 14, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == first
    )


def test_who_says_nothing_or_half_is_in_nobodys_way(relayed, monkeypatch):
  monkeypatch.setattr(relay, 'GREETING', 0.5)
  port, _, others = relayed
  crowd = [dialed(port, hello(NAME)[: i % 2 * 200]) for i in range(200)]
  with dialed(port, hello(NAME)) as caller:
    assert caller.recv(10)
  for each in crowd:
    with each, contextlib.suppress(ConnectionResetError):
      assert each.recv(1) == b''
  assert others.empty()


@pytest.mark.slow
def test_islands_behind_masquerading_routers_get_the_bits_of_direct_ones(
  tmp_path,
):
  """Both have the same private address."""
  if reason := missing(masked=True):
    pytest.skip(reason)
  digests, lines = [], []
  for how in ('--masked', '--bandwidth='):
    folder = tmp_path / how
    folder.mkdir()
    done = live_runs.run(
      *(sys.executable, '-m', 'benchmarks.network.cluster', '--hosts=3'),
      *('--bandwidth=', how, '--'),
      *(sys.executable, '-m', 'tests.support.masked', folder),
    )
    assert done.returncode == 0, done.stderr
    said = dict.fromkeys(('[host0]', '[host1]', '[host2]'), ())
    for line in done.stdout.splitlines():
      host, _, rest = line.partition(' ')
      said[host] += (rest,)
    lines.append({line for line in said['[host0]'] if 'pass through' in line})
    digests += said['[host1]'], said['[host2]']
  assert len({*digests}) == 1, digests
  relayed = {f'messages of {i} pass through this coordinator' for i in (1, 2)}
  assert lines == [relayed, set()]
