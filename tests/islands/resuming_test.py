"""The choice of a checkpoint to resume from, and of islands to copy it."""

from concurrent import futures

from selsync_jax.islands import resuming
from selsync_jax.islands.board import Board
from selsync_jax.islands.mapper import IslandMapper
from selsync_jax.islands.participants import IslandParticipants
from selsync_jax.islands.rounds import Rounds
from selsync_jax.runs.checkpoints import Choice


def test_of_two_with_one_state_the_one_that_was_alone_has_the_original(
  tmp_path,
):
  """The other island joined right after the checkpoint, and got a copy."""

  def record(islands, index):
    mapper = IslandMapper(islands, Board(islands).peers(index))
    return IslandParticipants(mapper, Rounds(tmp_path)).record()

  assert 'original' not in record(2, 1)
  assert record(1, 0)['original'] == 0
  board = Board(2, timeout=20)

  def go_on(index):
    takers = {7: resuming.Takers(1, original=1)}
    return resuming.agree(board.peers(index), takers, lambda step: b'packed')

  with futures.ThreadPoolExecutor(2) as pool:
    found = [*pool.map(go_on, range(2))]
  copies = {'0': '1'}
  assert found == [(Choice(7, b'packed'), copies), (Choice(7), copies)]
