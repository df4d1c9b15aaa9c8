"""Checks Table I of the SelSync paper against itself. Nothing is trained.

Tyagi and Swany, `Accelerating Distributed ML Training via Selective
Synchronization`, CLUSTER 2023. Let r be the cost of an average in local steps,
and LSSR the share of local steps. Then n steps cost n (1 + (1 - LSSR) r), and n
steps of BSP cost n (1 + r).
"""

import math
from typing import NamedTuple

from benchmarks.quality.paper.claim import Claim, Finding


class Row(NamedTuple):
  """A method of Table I, in the paper's numbers.

  Attributes:
    thousands: thousands of iterations until the method converges.
    score: accuracy in percent, or perplexity.
    gain: the paper's difference to BSP; more is better.
    lssr: the share of local steps; NaN for SSP, which has none.
    speedup: speed-up over BSP; NaN for a method below BSP's score.
  """

  thousands: float
  score: float
  gain: float = 0.0
  lssr: float = math.nan
  speedup: float = math.nan


METHODS = {  # As in `compare`.
  'FedAvg (1, 0.25)': 'fedavg+sync.fraction=1.0+sync.epochs=0.25',
  'FedAvg (1, 0.125)': 'fedavg+sync.fraction=1.0+sync.epochs=0.125',
  'FedAvg (0.5, 0.25)': 'fedavg+sync.fraction=0.5+sync.epochs=0.25',
  'FedAvg (0.5, 0.125)': 'fedavg+sync.fraction=0.5+sync.epochs=0.125',
  'SSP, s = 100': 'ssp+sync.staleness=100+virtual_cluster.compute=lognormal',
  'SSP, s = 200': 'ssp+sync.staleness=200+virtual_cluster.compute=lognormal',
  'SelSync, delta 0.3': 'selsync+sync.delta=0.3',
  'SelSync, delta 0.5': 'selsync+sync.delta=0.5',
}
BSP = {
  'ResNet101': Row(22.8, 98.5, lssr=0.0),
  'VGG11': Row(10.8, 90.9, lssr=0.0),
  'AlexNet': Row(106.5, 85.15, lssr=0.0),
  'Transformer': Row(28.0, 90.02, lssr=0.0),
}
_ROWS = {  # In the order of METHODS. The paper prints 62.8 as "62.8.1".
  'ResNet101': [
    Row(63.4, 98.55, +0.05, 0.979, 2.59),
    Row(57.1, 98.6, +0.1, 0.959, 2.55),
    Row(66.8, 94.4, -4.1, 0.979),
    Row(62.8, 95.5, -3.0, 0.959),
    Row(54.8, 93.8, -4.7),
    Row(59.4, 93.33, -5.17),
    Row(42.2, 98.62, +0.12, 0.829, 2.03),
    Row(53.2, 98.56, +0.06, 0.846, 1.67),
  ],
  'VGG11': [
    Row(17.4, 87.56, -3.34, 0.979),
    Row(20.2, 88.2, -2.7, 0.959),
    Row(19.6, 84.6, -6.3, 0.979),
    Row(21.1, 85.16, -5.74, 0.959),
    Row(11.8, 68.72, -22.18),
    Row(12.2, 68.78, -22.12),
    Row(72.4, 91.33, +0.43, 0.912, 6.16),
    Row(81.2, 91.32, +0.42, 0.937, 13.75),
  ],
  'AlexNet': [
    Row(118.0, 77.15, -8.0, 0.997),
    Row(124.0, 78.2, -6.95, 0.993),
    Row(115.6, 75.6, -9.55, 0.997),
    Row(121.4, 76.67, -8.48, 0.993),
    Row(111.5, 86.52, +1.37, speedup=4.53),
    Row(113.2, 85.8, +0.65, speedup=4.47),
    Row(95.8, 86.72, +1.57, 0.954, 4.62),
    Row(106.8, 85.93, +0.78, 0.966, 4.63),
  ],
  'Transformer': [
    Row(112.1, 89.96, +0.06, 0.998, 1.99),
    Row(104.2, 90.01, +0.01, 0.999, 2.14),
    Row(118.0, 91.67, -1.65, 0.999),
    Row(111.6, 91.2, -1.18, 0.998),
    Row(110.0, 89.98, +0.04, speedup=2.02),
    Row(116.2, 90.0, +0.02, speedup=1.92),
    Row(38.6, 89.91, +0.11, 0.725, 2.42),
    Row(46.1, 89.97, +0.05, 0.733, 2.06),
  ],
}
TABLE = {
  workload: dict(zip(METHODS, rows, strict=True))
  for workload, rows in _ROWS.items()
}


def limit(workload: str, method: str) -> float:
  """Returns the speed-up over BSP if local steps cost nothing."""
  row = TABLE[workload][method]
  return BSP[workload].thousands / (row.thousands * (1 - row.lssr))


def cost(workload: str, method: str) -> float:
  """Returns r, the cost of an average in local steps, from the speed-up.

  The result is negative if the speed-up is above its limit.
  """
  row = TABLE[workload][method]
  steps = row.speedup * row.thousands
  bsp = BSP[workload].thousands
  return (steps - bsp) / (bsp - steps * (1 - row.lssr))


def timed(workload: str) -> dict[str, Row]:
  """Returns the rows of a workload that have a speed-up and an LSSR."""
  rows = TABLE[workload].items()
  return {m: r for m, r in rows if math.isfinite(r.speedup * r.lssr)}


def lines() -> list[list[str]]:
  """Returns the speed-ups, the limits of them, and the costs they imply."""
  return [
    ['workload', 'method', 'speed-up', 'at most', 'cost'],
    *(
      [
        workload,
        method,
        f'{row.speedup}',
        f'{(most := limit(workload, method)):.2f}',
        f'{cost(workload, method):.1f}' if row.speedup < most else 'impossible',
      ]
      for workload in TABLE
      for method, row in timed(workload).items()
    ),
  ]


def lssr_of_fedavg(epochs: float, workers: int) -> float:
  """Returns the LSSR of FedAvg on CIFAR: 50,000 images, 32 for each worker."""
  return 1 - workers * 32 / (50_000 * epochs)


def injected_batch(alpha: float, beta: float, workers: int) -> float:
  """Returns b' of equation 3 for batches of 32."""
  return 32 / (1 + alpha * beta * workers)


def _by_workers(workers, formula, published, form, error, what):
  """Returns the finding of a formula, for the paper's number of workers.

  `published` holds the paper's numbers by the arguments of the formula, each
  rounded by less than `error`.
  """

  def agrees(n):
    return all(abs(formula(*k, n) - x) < error for k, x in published.items())

  parts = [
    f'{n} workers: '
    + ', '.join(format(formula(*case, n), form) for case in published)
    for n in (8, 10, 16)
  ]
  agree = ' and '.join(str(n) for n in (8, 10, 16) if agrees(n))
  other = f'does not hold: {what} of {agree}'
  return Finding('; '.join(parts), 'holds' if agrees(workers) else other)


_LSSR = {(0.25,): 0.979, (0.125,): 0.959}
_INJECTED = {(0.5, 0.5): 11, (0.75, 0.75): 6}
CLAIMS = [
  Claim(
    'FedAvg on CIFAR averages 4 and 8 times an epoch in 16 workers',
    'LSSR 0.979, 0.959',
    lambda _: _by_workers(
      16, lssr_of_fedavg, _LSSR, '.3f', 1e-3, 'the LSSR is that'
    ),
  ),
  Claim(
    "Injections (0.5, 0.5) and (0.75, 0.75) among 10 workers leave b' of a "
    'batch of 32',
    "b' = 11, 6",
    lambda _: _by_workers(
      10, injected_batch, _INJECTED, '.1f', 1, "b' is that"
    ),
  ),
]
