"""The paper's claims: arithmetic, rules, and whether they can be trained."""

import pytest

from benchmarks.quality import runs
from benchmarks.quality.paper import claim, table_one, workloads
from benchmarks.quality.paper.__main__ import GROUPS
from selsync_jax.report import significance
from selsync_jax.runs.history import Run


def test_no_two_claims_share_a_cell():
  _, claims = GROUPS['workloads']
  found = dict.fromkeys(claims, claim.Finding('', 'holds'))
  _, *rows = workloads.verdict_lines(found)
  cells = [cell for row in rows for cell in row[1:] if cell]
  assert len(cells) == len(claims)


def test_only_the_speed_ups_of_vgg11_contradict_their_own_lssr():
  rows = [(w, m) for w in table_one.TABLE for m in table_one.timed(w)]
  impossible = {
    (workload, method)
    for workload, method in rows
    if table_one.TABLE[workload][method].speedup
    > table_one.limit(workload, method)
  }
  vgg11 = {('VGG11', m) for m in table_one.METHODS if m.startswith('SelSync')}
  assert impossible == vgg11
  assert table_one.limit('VGG11', 'SelSync, delta 0.5') == pytest.approx(
    10.8 / (81.2 * 0.063)
  )


def test_the_cost_of_an_average_gives_the_speed_up_back():
  """Computes the speed-up by definition: BSP's cost over the method's."""
  for method, row in table_one.timed('ResNet101').items():
    cost = table_one.cost('ResNet101', method)
    own = row.thousands * (1 + (1 - row.lssr) * cost)
    assert 22.8 * (1 + cost) / own == pytest.approx(row.speedup)


@pytest.mark.parametrize(
  'numbers, verdict',
  [
    ([0.02, 0.03, 0.04], 'holds'),
    ([-0.02, -0.03, -0.04], 'does not hold'),
    ([-0.02, 0.03, 0.02], 'open'),
    ([0.02, 0.02, 0.02], 'open'),
    ([0.01, 0.02], 'open: fewer than 3 seeds'),
    ([0.02], 'open: fewer than 3 seeds'),
  ],
)
def test_the_interval_over_seeds_decides(numbers, verdict):
  found = claim.found(
    '', [], numbers, claim.BETTER, '+.2f', significance.ROUNDING
  )
  assert found.verdict == verdict


@pytest.mark.parametrize(
  'numbers, verdict', [([0.02] * 3, 'holds'), ([0.0] * 3, 'does not hold')]
)
def test_equal_exact_numbers_decide(numbers, verdict):
  found = claim.found('', [], numbers, claim.BETTER, '+.2f')
  assert found.verdict == verdict


def test_a_perplexity_that_float32_cannot_hold_is_judged(tmp_path):
  """A summary stores such a perplexity as `None`."""
  lost, fine = (
    Run('', tmp_path, {}, [{}], {'test_loss': loss, 'test_perplexity': None})
    for loss in (317.6, 2.3)
  )
  task, _ = workloads.TASKS['transformer']
  judge = claim.scored(task, claim.BETTER)
  assert judge([[fine, fine], [lost, lost]]).numbers == pytest.approx(
    [315.3] * 2
  )


def test_every_claim_can_be_trained_and_no_two_runs_share_a_folder(tmp_path):
  """`list_trials` refuses a config that breaks a rule, and equal folders."""
  flags = {}
  for _, claims in GROUPS.values():
    for arm in {arm for each in claims for arm in each.arms}:
      (trial,) = arm.trials(1, tmp_path)
      assert flags.setdefault(trial.workdir, trial.flags) == trial.flags
  assert len(flags) > 100


@pytest.mark.slow
def test_a_claim_is_judged_by_runs_that_were_trained(tmp_path):
  fields = 'data.backend=numpy', 'steps=10'
  task = claim.Task('few', 'hyperplane.py', 'loss', fields)
  arms = (claim.Arm(task, 'bsp'), claim.Arm(task, 'selsync+sync.delta=1000.0'))
  judge = claim.by_seed(
    'LSSR {}',
    workloads.lssr,
    '.1f',
    workloads.smallest_rise,
    claim.BETTER,
    '+.1f',
  )
  local = claim.Claim('', '', judge, arms)
  trials = [trial for arm in arms for trial in arm.trials(3, tmp_path)]
  runs.train_all(trials, 1)
  found = local.finding(3, tmp_path)
  assert found.ours == 'LSSR 0.0, 0.9'
  assert found.judged == '+0.9, equal in 3' and found.verdict == 'holds'
