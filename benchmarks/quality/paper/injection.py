"""Non-IID data: ten workers with one label each, with and without injection."""

from collections.abc import Iterator

from benchmarks.quality.paper.claim import (
  Arm,
  AS_GOOD,
  BETTER,
  Claim,
  scored,
  Task,
)

NONIID = Task(
  'noniid',
  'digits_noniid.py',
  fields=('model.num_filters=8', 'data.backend=numpy'),
)
SETTINGS = (0.5, 0.5, 0.05), (0.5, 0.5, 0.3), (0.75, 0.75, 0.3)
CURVES = 'curves'
FEDAVG = Arm(NONIID, 'fedavg+sync.epochs=0.25')


def _arm(alpha: float, beta: float, delta: float) -> Arm:
  method = f'selsync+sync.delta={delta}'
  shares = f'+data.injection.alpha={alpha}+data.injection.beta={beta}'
  return Arm(NONIID, method + (shares if alpha else ''))


def claims() -> Iterator[Claim]:
  """Yields the claims about injection."""
  better = scored(NONIID, BETTER)
  for setting in SETTINGS:
    delta = setting[-1]
    words = f'Injection {setting}'
    yield Claim(
      f'{words} is better than none',
      CURVES,
      better,
      (_arm(*setting), _arm(0, 0, delta)),
    )
    yield Claim(
      f'{words} is better than FedAvg (1, 0.25)',
      'FedAvg: 60 to 70%',
      better,
      (_arm(*setting), FEDAVG),
    )
  *others, last = SETTINGS
  yield Claim(
    f'Of the three, {last} is the best',
    CURVES,
    scored(
      NONIID,
      AS_GOOD,
      lambda best, *rest: min(NONIID.gain(best, other) for other in rest),
    ),
    (_arm(*last), *(_arm(*setting) for setting in others)),
  )
  yield Claim(
    f'Injection {last} is as good as BSP',
    CURVES,
    scored(NONIID, AS_GOOD),
    (_arm(*last), Arm(NONIID, 'bsp')),
  )
