"""Runs of the trainer whose islands are threads of a test."""

from concurrent import futures

from selsync_jax.devices.slices import ONE, Slices
from selsync_jax.islands.board import Board
from selsync_jax.islands.mapper import IslandMapper
from selsync_jax.islands.participants import IslandParticipants
from selsync_jax.islands.rounds import Rounds
from selsync_jax.training.train import train_and_evaluate


def participants(peers, workdir, devices=ONE):
  """The participants of a run, seen from one of its islands."""
  mapper = IslandMapper(len(peers.slots), peers, devices)
  return IslandParticipants(mapper, Rounds(workdir))


def train(folder, config_of, islands=2, change=lambda i, found: None):
  """Trains islands, each in a folder of its index; returns the summaries.

  Args:
    folder: folder of all islands.
    config_of: the config of the island of an index.
    islands: N, the number of islands.
    change: changes the participants of the island of an index.
  """
  board = Board(islands, timeout=20.0)

  def island(i):
    config, workdir = config_of(i), folder / f'{i}'
    devices = Slices(1, **config.mesh)
    found = participants(board.peers(i), workdir, devices)
    change(i, found)
    return train_and_evaluate(config, workdir, participants=found)

  with futures.ThreadPoolExecutor(islands) as pool:
    return [*pool.map(island, range(islands))]
