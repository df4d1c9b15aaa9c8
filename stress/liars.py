"""Trains eight islands, one of which lies about its parameters.

  python -m stress.liars

The islands are threads with real connections over TLS, and train the problem of
tests/support/liars.py. From its fifth round on, one of them passes on flipped
signs, NaN, its parameters times 100, its parameters of two rounds before, or
always the same. Under each averager that withstands a liar, the held-out loss
must be at most 2% above the loss of honest islands. The others must name the
liar in its first round with a lie: in a line about the values that it has sent,
or by the least weight in the average.

A liar with flipped signs sends usual lengths, so only its weight names it. The
mean, without a defense, is only printed. The exit code is 1 if a loss is
higher, a liar is not named, or an honest island is.
"""

from concurrent import futures
import contextlib
import io
import sys
import tempfile

import jax
import numpy as np

import selsync_jax as ss
from selsync_jax.config import RunError
from selsync_jax.islands.server import CoordinatorServer
from tests.support import liars

WORST = 0.02
AVERAGERS = {
  'mean': ss.mean(),
  'geometric_median': ss.geometric_median(),
  'centered_clip': ss.centered_clip(),
}
TRAIN, LOSS = jax.jit(liars.train), jax.jit(liars.loss)


def island(invitation, index, averager, lie):
  """The final parameters of an island, and its report of each round."""
  params, past, reports = liars.START, [], []
  strategy = ss.Strategy(ss.every(1), averager)
  with ss.Island.join(invitation, f'{index}', params, strategy) as joined:
    for i in range(liars.ROUNDS):
      params = TRAIN(params, liars.X[i, index], liars.Y[i, index])
      past.append(params)
      if index == liars.LIAR and i >= liars.BEGINS:
        params = liars.told(lie, params, past[-3], past[liars.BEGINS - 1])
      params = joined.after_step(params)
      reports.append(joined.metrics())
    return joined.leave(params), reports


def train(averager, lie):
  """The held-out loss; the honest islands' reports; and their lines."""
  lines = io.StringIO()
  with (
    contextlib.redirect_stderr(lines),
    CoordinatorServer(liars.N) as point,
    futures.ThreadPoolExecutor(liars.N) as pool,
  ):
    work = [
      pool.submit(island, str(point.invitation), i, averager, lie)
      for i in range(liars.N)
    ]
    params, reports = work[0].result()
  return float(LOSS(params, *liars.HELD_OUT)), reports, lines.getvalue()


def names(reports, lines):
  """How the liar is named in its first round with a lie."""
  at = f'at the average of step {liars.BEGINS + 1} '
  said = (line for line in lines.splitlines() if at in line)
  for line in said:
    if line.startswith(f'island {liars.LIAR} has sent '):
      return line.partition(' has sent ')[2].partition(', at ')[0]
  report = reports[liars.BEGINS]
  if report['least_weighted'] == liars.LIAR:
    return f'its weight is {report["least_weight"]:.2f}'
  return ''


def main() -> None:
  wrong = []
  with tempfile.TemporaryDirectory() as folder:
    jax.config.update('jax_compilation_cache_dir', folder)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    for name, averager in AVERAGERS.items():
      honest = np.nan
      for lie, what in enumerate(liars.LIES):
        try:
          loss, reports, lines = train(averager, lie)
        except RunError as error:
          print(f'{name:17} {what:11} ended: {error}', flush=True)
          continue
        honest = loss if lie == 0 else honest
        more = loss / honest - 1
        line = f'{name:17} {what:11} loss {loss:.4f}, {more:+.1%}'
        if not lie and ' has sent ' in lines:
          wrong.append(f'{line}; {lines}')
        elif lie and name != 'mean':
          how = names(reports, lines)
          line += f'; {how or "not named"}'
          if not (more <= WORST and how):
            wrong.append(line)
        print(line, flush=True)
  print('\n'.join(wrong) or 'all lies were withstood and named')
  sys.exit(bool(wrong))


if __name__ == '__main__':
  main()
