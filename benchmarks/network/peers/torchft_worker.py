"""Workers with torchft: its lighthouse, its manager, and its `LocalSGD`."""

import datetime
import sys
import time

from torch import distributed
import torchft
from torchft import coordination, local_sgd

from benchmarks.network import peers
from benchmarks.network.peers import digits


def meet() -> None:
  """Serves the lighthouse, whose address it prints."""
  lighthouse = coordination.LighthouseServer(
    bind='[::]:0',
    min_replicas=1,
    join_timeout_ms=1000 * peers.TIMEOUT,
    heartbeat_timeout_ms=1000 * peers.TIMEOUT,
  )
  print(lighthouse.address(), flush=True)
  while True:
    time.sleep(3600)


def train(name: str, address: str) -> None:
  """Trains until the process is killed."""
  network, optimizer, step = digits.create()
  lines = peers.Lines()

  def load(state):
    network.load_state_dict(state)
    lines.pending = 0  # The worker's own steps are lost.

  store = distributed.TCPStore(
    'localhost', 0, is_master=True, wait_for_workers=False
  )
  timeout = datetime.timedelta(seconds=peers.TIMEOUT)
  manager = torchft.Manager(
    pg=torchft.ProcessGroupGloo(timeout),
    load_state_dict=load,
    state_dict=network.state_dict,
    min_replica_size=1,
    use_async_quorum=False,
    timeout=timeout,
    replica_id=name,
    store_addr='localhost',
    store_port=store.port,
    rank=0,
    world_size=1,
    lighthouse_addr=address,
  )
  with local_sgd.LocalSGD(manager, network, optimizer, peers.PERIOD):
    while True:
      lines.begin_step()
      before = manager.current_step()
      step()
      if manager.current_step() > before:
        lines.average()


if __name__ == '__main__':
  meet() if sys.argv[1] == 'meet' else train(*sys.argv[1:3])
