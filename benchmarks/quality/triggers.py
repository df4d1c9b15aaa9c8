"""Does any adaptive rule beat a period, if all send the same bytes?

  python -m benchmarks.quality.triggers
  python -m benchmarks.quality.triggers --tasks text --seeds=5

Trains a task with rules that decide when workers average, what they average, or
in how many bits (benchmarks/quality/trigger_methods.py). Every rule sends as
many bytes as an average at every fifth step in int4, or fewer. Each has six
trials with one seed: two settings of its own with three learning rates; BSP has
one setting with six. The best trial on validation is trained with other seeds,
and only then does the test split count.

Prints a table for each task, the best on validation first: the score on test,
its difference to the period seed by seed, the bytes, and the shortest and the
longest gap between averages. Writes triggers.json and, with --into, the tables
into a page, between `<!-- triggers_TASK: ... -->` and
`<!-- /triggers_TASK -->`. Finished runs are not repeated.
"""

import pathlib

from benchmarks.quality import families
from benchmarks.quality.rules import Study, Task

FILE = pathlib.Path(__file__).with_name('trigger_methods.py')
PERIOD = 'a period'

INT4 = '+sync.wire=int4'
SELSYNC = f'selsync+sync.delta=None+sync.lssr=0.8{INT4}+sync.max_period='

RULES: dict[str, dict[str, str]] = {
  'BSP, all bytes': {'': 'bsp'},
  PERIOD: {
    '5': f'local_sgd+sync.period=5{INT4}',
    '6': f'local_sgd+sync.period=6{INT4}',
  },
  'SelSync': {
    'smoothing 0.16': f'{SELSYNC}None',
    'smoothing 0.04': f'{SELSYNC}None+sync.smoothing=0.04',
  },
  'SelSync, longest gap': {
    'at most 10': f'{SELSYNC}10',
    'at most 7': f'{SELSYNC}7',
  },
  'SelSync, even gaps': {
    '4 to 7': f'evenly{INT4}',
    '3 to 6': f'evenly+sync.shortest=3+sync.longest=6{INT4}',
  },
  'SelSync by array': {
    'smoothing 0.16': f'by_array_change{INT4}',
    'smoothing 0.04': f'by_array_change+sync.smoothing=0.04{INT4}',
  },
  'momentum by array (CurvaDion)': {
    'momentum 0.9': f'by_momentum{INT4}',
    'momentum 0.99': f'by_momentum+sync.momentum=0.99{INT4}',
  },
  'variance (FDA)': {
    'linear': f'by_variance{INT4}',
    'naive': f'by_variance+sync.variant=naive{INT4}',
  },
  'drift of a worker': {
    'all parameters': f'by_drift{INT4}',
    'an array, relative': f'by_drift+sync.relative=True{INT4}',
  },
  'learning rate (QSR)': {
    'at least 4': f'quadratic{INT4}',
    'at least 2': f'quadratic+sync.h_min=2{INT4}',
  },
  'bits by drift': {
    '2 or 8 bits': 'by_precision',
    '2 or 4 bits, period 4': (
      'by_precision+sync.period=4+sync.fine=int4+sync.share=0.6'
    ),
  },
  'arrays by drift': {
    'each step': 'send_arrays',
    'period 2': 'send_arrays+sync.period=2',
  },
  'arrays in turn': {
    'each step': 'arrays_in_turn',
    'period 2': 'arrays_in_turn+sync.period=2',
  },
  'parts in turn': {
    'a fifth each step': f'partial+sync.fragments=5{INT4}',
    'a third, period 2': f'partial+sync.fragments=3+sync.period=2{INT4}',
  },
}
"""The settings of each rule, as in `compare`, by their names in the table."""

TASKS = {
  'text': Task(f'{FILE}:text', 'A language model, AdamW', {}),
  'text_muon': Task(f'{FILE}:text_muon', 'A language model, Muon', {}),
  'pictures': Task(
    f'{FILE}:pictures',
    'Fashion-MNIST, SGD',
    families.TASKS['fashion_mnist'].fields,
  ),
  'one_label': Task(
    f'{FILE}:one_label',
    'Fashion-MNIST, SGD, ten workers with one label each',
    families.TASKS['fashion_mnist_one_label'].fields,
  ),
}

STUDY = Study(
  'triggers', 'rule', RULES, TASKS, baselines=(PERIOD,), trials=6, seed=90
)


def main() -> None:
  parser = STUDY.parser(__doc__)
  parser.add_argument(
    '--idx-dir', help='folder with the files of Fashion-MNIST'
  )
  STUDY.run(parser.parse_args())


if __name__ == '__main__':
  main()
