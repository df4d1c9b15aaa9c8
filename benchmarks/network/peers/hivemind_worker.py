"""Workers with hivemind's `DecentralizedAverager`."""

import sys
import time

import hivemind

from benchmarks.network import peers
from benchmarks.network.peers import digits


def meet() -> None:
  """Serves the first peer of the hash table, whose address it prints."""
  table = hivemind.DHT(start=True)
  print(table.get_visible_maddrs()[0], flush=True)
  while True:
    time.sleep(3600)


def train(address: str, workers: int) -> None:
  """Trains until the process is killed."""
  network, _, step = digits.create()
  tensors = [x.detach() for x in network.parameters()]
  averager = hivemind.DecentralizedAverager(
    tensors,
    hivemind.DHT([address], start=True),
    start=True,
    prefix='digits',
    target_group_size=workers,
    min_matchmaking_time=peers.TIMEOUT,
    next_chunk_timeout=peers.TIMEOUT,
  )
  lines = peers.Lines()
  if found := averager.load_state_from_peers(timeout=2 * peers.TIMEOUT):
    for x, new in zip(tensors, found[1], strict=True):
      x.copy_(new)
  while True:
    for _ in range(peers.PERIOD):
      lines.begin_step()
      with averager.get_tensors():
        step()
    try:
      if averager.step(timeout=peers.TIMEOUT + 1):
        lines.average()
    except Exception as error:  # The worker trains on without the average.
      print(type(error).__name__, error, flush=True)


if __name__ == '__main__':
  meet() if sys.argv[1] == 'meet' else train(sys.argv[2], int(sys.argv[3]))
