"""Does an outer step help when all averages send the same bytes?

  python -m benchmarks.quality.outer --into=docs/evidence.md
  python -m benchmarks.quality.outer --only DiLoCo --seeds=5

Trains the small language model with methods that step an outer optimizer on the
workers' mean update, and with averages alone. All of them send as many bytes as
an average at every fifth step in int4. DES-LOC also averages AdamW's moments
in bfloat16, so its averages are less frequent.

Two more rows tell the outer step from averaging, with all bytes: as in BSP,
workers average their gradients, and an outer step moves their parameters at
every fifth step. That is DiLoCo or MuLoCo with one worker (K = 1).

Each method has eight trials with one seed: four outer steps with two learning
rates, or two averages with four; BSP has eight rates. The best trial on
validation is trained with other seeds, and only then does the test split count.

Prints a table, the best on validation first: the score on test, its difference
to BSP and to local SGD seed by seed, the bytes, and the gaps between averages.
Writes outer.json and, with --into, the table into a page, between
`<!-- outer_text: ... -->` and `<!-- /outer_text -->`. Finished runs are not
repeated.
"""

from benchmarks.quality import families
from benchmarks.quality.families import BSP, MUON, SHORT
from benchmarks.quality.rules import Study, Task

LOCAL = 'local SGD'
PERIOD = '+sync.period=5'
STEPS = (0.7, 0.3), (0.7, 0.5), (1.0, 0.6), (0.7, 0.9)
"""Rates and momenta of outer steps; the last are DiLoCo's.

In the long run such a step is as long as 1, 1.4, 2.5, or 7 mean updates.
"""


def average(method: str) -> dict[str, str]:
  """The settings of a method without an outer step."""
  return {
    'period 5, int4': f'{method}{SHORT}',
    'period 3, int2': f'{method}+sync.period=3+sync.wire=int2',
  }


def step(method: str) -> dict[str, str]:
  """The settings of a method with an outer step."""
  outer = '+sync.outer.'
  return {
    f'outer rate {rate}, momentum {momentum}': (
      f'{method}{outer}learning_rate={rate}{outer}momentum={momentum}'
    )
    for rate, momentum in STEPS
  }


def moments(period: int, first: int, second: int) -> dict[str, str]:
  """A setting of DES-LOC with the task's AdamW.

  Args:
    period: steps between averages of the parameters.
    first: averages of the parameters from one of the first moment to the next.
    second: the same for the second moment.
  """
  every = '+sync.optimizer_state.every.'
  seldom = f'moments every {first * period} and {second * period}'
  return {
    f'period {period}, {seldom}': (
      f'local_sgd+sync.period={period}+sync.wire=int4'
      f'+sync.optimizer_state=mean{every}mu={first}{every}nu={second}'
    )
  }


METHODS = {
  BSP: {'': 'bsp'},
  'BSP, Muon': {'': families.FAMILIES[BSP][1]},
  LOCAL: average('local_sgd'),
  'local SGD, Muon': average(MUON),
  'DES-LOC': moments(15, 3, 6) | moments(10, 6, 12),
  'DiLoCo': step(f'diloco{SHORT}'),
  'MuLoCo': step(f'muloco{SHORT}'),
  'EDiT': step(f'edit{SHORT}'),
  'NoLoCo': step('noloco+sync.period=26'),  # Pairs average in float32.
  'BSP, outer step (K = 1)': step(f'diloco{PERIOD}+sync.reducer=all_reduce'),
  'BSP, Muon, outer step (K = 1)': step(
    f'muloco{PERIOD}+sync.reducer=all_reduce'
  ),
}
"""The settings of each method, as in `compare`, by their names in the table."""

TASKS = {
  'text': Task('stdlib_gpt:smoke', families.TASKS['stdlib_gpt'].title, {}),
}

STUDY = Study(
  'outer', 'method', METHODS, TASKS, baselines=(BSP, LOCAL), trials=8, seed=110
)


def main() -> None:
  STUDY.run(STUDY.parser(__doc__).parse_args())


if __name__ == '__main__':
  main()
