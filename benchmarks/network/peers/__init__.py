"""Workers of `benchmarks.network.beside_peers`: what is equal on all of them.

Each takes steps of local SGD on the digits, with one network, and writes a line
at the start of every step.
"""

import os
import time

PERIOD = 10  # Steps from one average to the next.
PAUSE = 0.1  # Seconds of a step in which the CPU is idle, as with a GPU.
WIDTH = 1408  # Of two hidden layers: 2.09 M parameters, 8.4 MB of float32.
BATCH = 8
RATE = 0.05
TIMEOUT = 5  # Seconds until a silent worker is given up.
LINES = 'BESIDE_PEERS_LINES'  # The variable that names a worker's file.


class Lines:
  """The lines of a worker, which its parent reads.

  Attributes:
    averages: number of averages that this worker has taken part in.
    kept: number of its steps that these averages hold.
    pending: number of its steps since the last of them.
  """

  def __init__(self):
    self._file = open(os.environ[LINES], 'w', buffering=1)  # noqa: SIM115
    self.averages = self.kept = self.pending = 0

  def begin_step(self) -> None:
    """Writes a line, and leaves the CPU idle."""
    print(time.time(), self.averages, self.kept, file=self._file)
    time.sleep(PAUSE)
    self.pending += 1

  def average(self) -> None:
    """Counts an average that holds all pending steps."""
    self.averages += 1
    self.kept, self.pending = self.kept + self.pending, 0
