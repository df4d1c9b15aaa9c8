"""Processes of a run, as threads of this process."""

from concurrent import futures
import os
import queue
import socket

import pytest

from selsync_jax.cluster import signals, world
from selsync_jax.cluster.world import World
from selsync_jax.config import RunError
from tests.support.members import die, TOKEN


@pytest.fixture
def port():
  with socket.create_server(('localhost', 0)) as server:
    return server.getsockname()[1]


@pytest.fixture(scope='module')
def codes():
  """Exit codes of worlds that end their process, which stays alive here."""
  codes, watches = queue.Queue(), World._watch

  def end(code):
    codes.put(code)
    raise SystemExit

  def watch(member):
    try:
      watches(member)
    except SystemExit:  # Its connections end with it.
      die(member)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(os, '_exit', end)
    patch.setattr(signals, 'discard_output', lambda: None)  # Pytest continues.
    patch.setattr(world, 'GRACE', 0.2)
    patch.setattr(World, '_watch', watch)
    yield codes


@pytest.fixture
def ends(codes):
  """The exit codes of one test."""
  while not codes.empty():
    codes.get()
  return codes


@pytest.fixture
def meet(port, ends):
  """Opens the connections of several processes at once, in threads.

  `meet((process, agreed), ..., timeout=30.0)` returns each one's `World`, or
  the `RunError` that it raised. A member may have its own token: `(process,
  agreed, token)`.
  """
  del ends  # The worlds close before their process could end.
  opened = []

  def join(process, agreed, token=TOKEN, *, timeout):
    address, offer = f'localhost:{port}', f'offer of {process}'
    try:
      opened.append(World(address, process, agreed, offer, timeout, token))
      return opened[-1]
    except RunError as error:
      return error

  def meet(*members, timeout=30.0):
    with futures.ThreadPoolExecutor(len(members)) as pool:
      each = [pool.submit(join, *member, timeout=timeout) for member in members]
      return [one.result() for one in each]

  yield meet
  for one in opened:
    one._leaving.set()  # None ends the process in a later test.
  for one in opened:
    die(one)


@pytest.fixture
def together():
  """Calls a function with each of several worlds, in threads."""

  def together(do, *worlds):
    with futures.ThreadPoolExecutor(len(worlds)) as pool:
      return [*pool.map(do, worlds)]

  return together
