"""The mistakes that `make check-docs` finds in a page."""

import runpy

import pytest

from tests.support.pages import ROOT

script = runpy.run_path(str(ROOT / 'docs' / 'check.py'))

GOOD = """# A page

<!-- measured: `python -m benchmarks.speed.start --rounds=3`, 2 cores -->
The first step takes 4.53 s.
<!-- /measured -->

<!-- measured -->
```sh
.venv/bin/python train.py --config=digits:bsp --noreport --config.epochs=2.0
```

| method | score |
|---|---:|
| bsp | 0.97 |
<!-- /measured -->

<!-- scores: `make results` -->
The best has 97%.
<!-- /scores -->

So do `compare.py --methods=bsp,selsync+sync.trigger.delta=1+sync.wire=int8` and
`train.py --config.mapper vmap --config.model.width=8 --config.optimizer.b1=0.9
--config.sync.trigger=any_of --config.sync.trigger.a.k=8`.

The default of `delta` is 0.3, or `0.300`; the paper reports 62%. A 95% interval
of 3 seeds; see `python -m benchmarks.SUBJECT.NAME` and jax 0.10.2.
"""

UNMARKED = 'is between no marks that name its command'
BAD = [
  ('The step takes 3 ms.', 1, f'3 ms {UNMARKED}'),
  ('The paper is right.\nHere it is\n2.5\ntimes.', 3, f'2.5 times {UNMARKED}'),
  ('| | score |\n|---|---:|\n| bsp | 0.97 |', 3, f'0.97 {UNMARKED}'),
  ('```text\nsteps 300\nloss  0.11\n```', 3, f'0.11 {UNMARKED}'),
  (
    *('\n<!-- measured: 2 cores -->\nIt takes 3 ms.\n<!-- /measured -->', 2),
    'no command between these marks',
  ),
  ('<!-- measured: `make results` -->', 1, '<!-- measured has no partner'),
  ('\n<!-- /measured -->', 2, '<!-- /measured has no partner'),
  ('`python -m stress.gone`', 1, 'there is no stress/gone.py'),
  (
    *('`benchmarks.speed.start --gone`', 1),
    'benchmarks/speed/start.py has no flag --gone',
  ),
  (
    *('`python -m benchmarks.speed.start`,\nand with `--gone=3`', 2),
    'benchmarks/speed/start.py has no flag --gone',
  ),
  ('`make gone`', 1, 'Makefile has no target gone'),
  (
    *('`selsync launch --islands=2 -- selsync train --gone`', 1),
    'selsync_jax/commands/train.py has no flag --gone',
  ),
  (
    *('```sh\n# What it is.\nselsync gone\n```', 3),
    'there is no selsync_jax/commands/gone.py',
  ),
  (
    *('`selsync report runs/a --noreport`', 1),
    'selsync_jax/commands/report.py has no flag --noreport',
  ),
  ('`X=1 python train.py --config=gone:bsp`', 1, 'there is no config gone'),
  (
    *('`selsync train --config configs/digits.py:gone`', 1),
    'configs/digits.py has no gone',
  ),
  ('`compare.py --config=digits:bsp,gone`', 1, 'digits has no gone'),
  *(
    (f'`{command}`', 1, f'no config has a field {field}')
    for command, field in (
      ('train.py --config.batchsize=8', 'batchsize'),
      ('train.py --config.period=5', 'period'),
      ('train.py --config.model.gone 5', 'model.gone'),
      ('train.py --config.sync.trigger.gone=1', 'sync.trigger.gone'),
      ('compare.py --methods=bsp,qsr+seed=1+sync.gone=5', 'sync.gone'),
      ('compare.py --seeds=1 --sweep=sync.gone=1,2', 'sync.gone'),
    )
  ),
]


def test_figures_with_a_command_that_exists_and_others_pass():
  assert script['check']('page.md', GOOD) == []


@pytest.mark.parametrize('text, line, message', BAD)
def test_mistakes_are_found_at_their_lines(text, line, message):
  before = GOOD.count('\n') + 1
  (found,) = script['check']('page.md', f'{GOOD}\n{text}\n')
  assert found == f'page.md:{before + line}: {message}'


def test_each_section_of_measurements_names_a_command():
  text = '# Speed\n\n`make results`: 3 ms.\n\n## Memory\n\nIt needs 3 GB.\n'
  (found,) = script['check']('benchmarks/README.md', text)
  assert found == 'benchmarks/README.md:5: no command between these marks'
