"""Islands that send unusual values are named."""

from concurrent import futures
import queue

from jax import lax
import ml_dtypes
import numpy as np
import pytest

import selsync_jax as ss
from selsync_jax.cluster.protocol.messages import Place
from selsync_jax.islands import joining, server
from selsync_jax.islands.guard import Guard
from selsync_jax.islands.program import complete, cut

NAMES = ('hawaii', 'maui', 'molokai', 'oahu')
PLACE = Place(1, '', 1, 6, 'average', 'psum', 'float32', (8,))
AT = 'at the average of step 7 (psum of float32[8])'


def honest(rng, dtype=np.float32):
  return [rng.normal(size=8).astype(dtype) for _ in NAMES]


def said(*exchanges):
  """The lines of a guard that sees these messages."""
  lines = []
  guard = Guard(lines.append)
  for messages in exchanges:
    guard.see(PLACE, NAMES, messages)
  return lines


@pytest.mark.parametrize('dtype', [np.float32, ml_dtypes.bfloat16, np.float64])
def test_it_names_an_island_by_what_it_has_sent(dtype):
  rng = np.random.default_rng(0)
  first, second = honest(rng, dtype), honest(rng, dtype)
  assert said(first, second) == []
  second[1] = second[1] * np.asarray(100, dtype)
  second[2] = np.full_like(second[2], np.nan)
  second[3] = first[3]
  assert said(first, second, second) == [
    f'island molokai has sent values that are not finite, {AT}',
    f'island maui has sent values 10 times as large as is usual, {AT}',
    f'island oahu has sent the values of an earlier average, {AT}',
  ]


def test_what_most_islands_do_is_usual():
  rng = np.random.default_rng(0)
  first = honest(rng)
  broken = [np.full(8, np.inf, np.float32)] * 2 + first[:2]
  nothing = [np.zeros(8, np.float32)] * 4
  codes = [np.arange(8, dtype=np.int8)] * 3 + [np.full(8, 100, np.int8)]
  assert said(first, first, broken, nothing, nothing, codes, codes) == []


def test_zeros_may_be_sent_again():
  rng = np.random.default_rng(0)
  each = [honest(rng) for _ in range(3)]
  for messages in each:
    messages[2] = np.zeros(8, np.float32)
  assert said(*each) == []


def test_all_islands_name_one_within_the_round():
  lines = [queue.Queue() for _ in NAMES]
  mean = cut(lambda x: lax.pmean(x, ss.AXIS))
  with (
    server.CoordinatorServer(4) as point,
    futures.ThreadPoolExecutor(4) as pool,
  ):

    def island(i):
      peers = joining.join(
        *(point.invitation, NAMES[i], 'a run', 30.0), say=lines[i].put
      )
      x = np.arange(4000, dtype=np.float32) + i
      for scale in (1.0, 100.0 if i == 2 else 1.0):
        complete(peers, mean, np.float32(scale) * x)
      peers.close()

    list(pool.map(island, range(4)))
  for each in lines:
    line = each.get(timeout=20)
    assert line.startswith('island molokai has sent values 10 times as large')
    assert each.empty()
