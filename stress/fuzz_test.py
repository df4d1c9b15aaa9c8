"""Custom code that misbehaves gives a one-line error, and loses nothing."""

import pytest

from stress import forked, fuzz, hostile_code
from stress.hostile_code import Case

RAISING = [
  (Case('callback', "raise ValueError('boom')", 10), 1),
  (Case('transform', 'sys.exit()', 10), 1),
  (Case('derived', "raise ValueError('\\udcff')", 3), 1),
  (Case('task', "return result | {'step': loss}", 1), 2),
]
# Mistakes that are harmless, or show only in the numbers.
ACCEPTED = {
  ('derived', 'return {}'),
  ('model', "self.param('a/b', nn.initializers.ones, (3,))"),
  ('model', "self.variable('grown', 'x', lambda: jnp.ones(CALLS['model']))"),
  ('evaluated model', "self.param('a/b', nn.initializers.ones, (3,))"),
  (
    'evaluated model',
    "self.variable('grown', 'x', lambda: jnp.ones(CALLS['model']))",
  ),
  ('evaluated model', 'return result * jnp.nan'),
}
ACCEPTED |= {
  (place, act)
  for place in ('dataset', 'transform', 'augment')
  for act in ("result['image'] *= 2", "result['a/b'] = result['label']")
}
# The same lines check the results of a transform and of an augmentation, and
# anything that is not a dict.
ALIKE = {
  *(('transform', act) for act in ('return 3', "return 'text'", 'return []')),
  *(
    ('augment', act)
    for act in hostile_code.WRONG['augment']
    if act not in ('return None', "del result['label']")
  ),
}
REFUSED = [
  Case(place, act, 1)
  for place, acts in hostile_code.WRONG.items()
  for act in acts
  if place != 'opened writer' and (place, act) not in ACCEPTED | ALIKE
]


def ended(case, tmp_path, run):
  file, workdir = tmp_path / 'config.py', tmp_path / 'run'
  case.write(file)
  flags = [f'--config={file}', f'--workdir={workdir}']
  return fuzz.fault_of_code(case, flags, tmp_path, workdir, 120, run)


@pytest.fixture(scope='module')
def forks():
  forks = forked.Forks()
  yield forks
  forks.close()


@pytest.mark.slow
@pytest.mark.parametrize('case, code', RAISING, ids=str)
def test_code_that_raises_ends_in_one_line_and_resumes_once_it_is_right(
  case, code, tmp_path, forks
):
  # The first case, run the way that `python -m stress.fuzz` runs its cases.
  run = fuzz.run if case.place == 'callback' else forks.run
  assert ended(case, tmp_path, run) == (code, None)


@pytest.mark.slow
@pytest.mark.parametrize('case', REFUSED, ids=str)
def test_code_that_returns_something_wrong_is_refused_in_one_line(
  case, tmp_path, forks
):
  code, fault = ended(case, tmp_path, forks.run)
  assert code and not fault
