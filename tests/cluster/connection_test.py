"""Signed frames between two ends, without a network."""

import pytest

from selsync_jax.cluster.connection import SIGNED, SignedFrames

OTHER_TOKEN = 'it has another SELSYNC_CLUSTER_TOKEN'
OTHER_PROGRAM = 'it does not answer like a process of a run'


class Wire:
  """One direction of a connection; a test delivers what was written."""

  def __init__(self):
    self.written, self.is_closed = b'', False

  def write(self, data):
    self.written += data

  def close(self):
    self.is_closed = True

  abort = close

  def is_closing(self):
    return self.is_closed

  def get_write_buffer_size(self):
    return 0

  def take(self):
    data, self.written = self.written, b''
    return data


class End(SignedFrames):
  """An end that keeps what it hears."""

  def __init__(self, token, listens):
    self.heard, self.is_open = [], False
    super().__init__(
      lambda _: setattr(self, 'is_open', True),
      lambda _, content: self.heard.append(content),
      lambda _: None,
      token=token,
      listens=listens,
    )
    self.connection_made(Wire())


def pair(token='secret', other='secret'):
  """A calling and a listening end that have exchanged their numbers."""
  calls, listens = End(token, False), End(other, True)
  calls.data_received(listens.transport.take())
  listens.data_received(calls.transport.take())
  assert calls.is_open and listens.is_open
  return calls, listens


def deliver(sender, receiver):
  receiver.data_received(sender.transport.take())


def test_ends_with_one_token_hear_each_other_however_the_bytes_are_cut():
  calls, listens = pair()
  calls.send(b'one', b'')
  for byte in calls.transport.take():
    listens.data_received(bytes([byte]))
  listens.send(b'two')
  deliver(listens, calls)
  assert (listens.heard, calls.heard) == ([b'one', b''], [b'two'])


def test_the_end_with_another_token_learns_it_from_the_answer():
  calls, listens = pair('a guess')
  calls.send(b'forged')
  deliver(calls, listens)
  assert not listens.heard and listens.transport.is_closed
  deliver(listens, calls)
  assert not calls.heard
  assert calls.stranger == listens.stranger == OTHER_TOKEN


@pytest.mark.parametrize('attack', ['changed', 'repeated', 'sent back'])
def test_a_message_cannot_be_changed_or_repeated_or_sent_back(attack):
  calls, listens = pair()
  calls.send(b'one')
  sent, victim = calls.transport.take(), listens
  if attack == 'changed':
    sent = sent[:-1] + b'E'
  elif attack == 'repeated':
    listens.data_received(sent)
  else:
    victim = calls
  heard = [*victim.heard]
  victim.data_received(sent)
  assert victim.heard == heard
  assert victim.stranger == OTHER_TOKEN and victim.transport.is_closed


@pytest.mark.parametrize(
  'hello', [b'x\n', b'selsync 1 ' + 32 * b'0' + b'\n', b'a' * 2**20, 99 * b'0']
)
def test_another_program_or_version_is_cut_off_at_once(hello):
  calls = End('secret', False)
  calls.data_received(hello)
  assert calls.stranger == OTHER_PROGRAM
  assert calls.transport.is_closed and not calls.is_open


def test_a_frame_that_is_too_long_is_not_waited_for():
  calls, listens = pair()
  del calls
  listens.data_received((SIGNED + 1).to_bytes(4))
  assert listens.transport.is_closed
