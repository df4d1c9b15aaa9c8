"""Arguments of parts, and combinations of parts, that are refused."""

import jax
import jax.numpy as jnp
import optax
import pytest

import selsync_jax as ss
from selsync_jax.methods import adaptive
from selsync_jax.methods.parts import Context

SGD = optax.sgd(0.5)
HALF = ss.outer(SGD)
INT8 = ss.mean(wire=ss.wires.int8())
LATE = ss.delayed(ss.mean(), 2)
EAGER = ss.eager_outer(SGD)
MOMENTS = ss.optimizer_state.mean()
TREE = {'w': jnp.zeros((3, 2)), 'count': jnp.int32(0)}


def budget(trigger=None, **fields):
  return ss.budgeted(trigger or ss.fda(1.0), **{'lssr': 0.9} | fields)


def selsync(**fields):
  return adaptive.selsync(Context(100, 0), **fields)


def check(*parts, **more):
  ss.Strategy(*parts, **more).check()


def applied(part, workers):
  """Runs a reducer or an averager among some workers."""
  run = getattr(part, 'update', None) or part.apply
  rows = jnp.ones((workers, 399))
  return jax.vmap(lambda x: run(x, part.init(x)), axis_name=ss.AXIS)(rows)


# By call: a pattern in the error message.
RANGES = {
  'ss.selsync(-0.1)': r'delta=-0.1: must be at least 0',
  'ss.selsync(float("nan"))': 'delta=nan: must be',
  'ss.selsync(1, smoothing=0)': r'smoothing must be in \(0, 1\], got 0',
  'ss.selsync(1, smoothing=1.1)': r'smoothing must be in \(0, 1\]',
  'ss.selsync(1, quorum=0.0)': r'quorum=0.0: must be in \(0, 1\]',
  'ss.selsync(1, quorum=2)': r'quorum=2: must be in \(0, 1\]',
  'ss.selsync(1, vote_delay=2)': 'vote_delay=2: must be 0 or 1',
  'ss.selsync(1, vote_every=0)': 'vote_every=0: must be at least 1',
  'ss.fda(-1.0)': 'theta=-1.0: must be at least 0',
  'ss.fda(float("nan"))': 'theta=nan: must be',
  'ss.fda(1.0, "cubic")': "variant='cubic': must be naive or linear",
  'ss.fda(1.0, depth=33)': r'depth=33: must be in \[1, 32\]',
  'ss.fda(1.0, width=0)': 'width=0: must be at least 1',
  'ss.any_of()': 'any_of needs at least one trigger',
  'ss.every(0)': r'k=0: must be in \[1, ',
  'ss.every(2**31)': rf'k={2**31}: must be in \[1, ',
  'ss.max_interval(0)': r'k=0: must be in \[1, ',
  'ss.max_interval(2**31)': rf'k={2**31}: must be in \[1, ',
  'ss.post_local(-1, 4)': r'switch=-1: must be in \[0',
  'ss.post_local(1, 0)': r'k=0: must be in \[1',
  'ss.qsr(0.0, 4, optax.constant_schedule(1))': 'alpha=0.0: must be ',
  'ss.qsr(0.1, 0, optax.constant_schedule(1))': r'h_min=0: must be ',
  'budget(lssr=1.0)': r'lssr=1.0: must be in \[0, 1\)',
  'budget(gain=0.0)': 'gain=0.0: must be ab',
  'ss.subset_mean(0.0)': r'fraction=0.0: must be in \(0, 1\]',
  'ss.gossip("star")': "'star': must be exponential or ring",
  'ss.groups(3)': 'size must be a power of two above 1, got 3',
  'ss.groups(2, "sorted")': "'sorted': must be butterfly or",
  'ss.groups(2, all_every=0)': 'all_every=0: must be at least',
  'ss.fragments(0)': 'k=0: must be at least 1',
  'ss.fragments(2, "all")': "'all': must be in_turn or random",
  # A part given as an argument is named by the call that made it.
  'ss.fragments(2, ss.mean())': r'^how=mean\(\): must be in_turn or',
  'ss.robust_mean(warmup=1)': 'warmup',  # Too few norms for a deviation.
  'ss.delayed(ss.mean(), 0)': 'steps=0: must be at least 1',
  'ss.delayed(ss.mean(), 2, keep=1.5)': 'keep=1.5: must be in',
  'ss.power_sgd(0)': 'rank=0: must be at least 1',
  'ss.lazy(bits=2)': 'bits',
  **{
    f'ss.{name}({density})': 'density=.*: must be '
    for name in ('top_k', 'micro', 'exdyna')
    for density in (0.0, 1.5, 'float("nan")')
  },
  **{  # A message has room for the whole selection.
    f'ss.{name}(0.01, capacity={given})': rf'capacity={shown}: must be {rule}'
    for name in ('micro', 'exdyna')
    for given, shown, rule in (
      (0.5, r'0\.5', 'at least 1'),
      ('float("nan")', 'nan', 'a finite number'),
    )
  },
}
TOGETHER = {
  'ss.groups(4).check(6)': '6 workers cannot be divided into groups of 4',
  'ss.groups(2).check(6)': (
    'butterfly groups need a power of two of workers, got 6'
  ),
  'applied(ss.groups(4, "random"), 6)': (
    '6 workers cannot be divided into groups of 4'
  ),
  'ss.fragments(2, averager=ss.groups(4)).check(6)': (
    '6 workers cannot be divided into groups of 4'
  ),
  **{  # Otherwise the threshold would rise without end.
    f'{call.format(f"ss.{name}(0.01)")}': (
      r'density=0.01 of 399 elements is 3, fewer than .* the 4 workers'
    )
    for call in ('applied({}, 4)', '{}.sends(jnp.ones(399), 4)')
    for name in ('micro', 'exdyna')
  },
  'ss.reducers.clipped(1.0, ss.no_reduction())': 'reduces nothing: clip',
  # A second moment rounded to 0 would make the next step huge.
  'ss.optimizer_state.mean(wire=ss.wires.int8())': (
    'could round a second moment to 0'
  ),
  'ss.optimizer_state.mean(every={"mu": 0})': (
    "every={'mu': 0}: must be at least 1"
  ),
  'ss.optimizer_state.mean(every={"mu": 2.5})': (
    "every={'mu': 2.5}: must be a whole number"
  ),
  'ss.optimizer_state.mean(only=["nu"], every={"mu": 3})': (
    r"every={'mu': 3}: 'mu' is not in only=\['nu'\]"
  ),
}
AVERAGERS = {
  'ss.outer(SGD, averager=EAGER)': "eager_outer.* remembers each worker's resu",
  'ss.outer(SGD, averager=ss.outer(SGD, averager=ss.gossip()))': (
    r"averager=gossip\(\)\) remembers each worker's result"
  ),
  'ss.outer(SGD, averager=ss.fragments(2))': (
    r'fragments\(2\) averages a piece of it at a time'
  ),
  'ss.outer(SGD, averager=ss.interleave(2, HALF, ss.fragments(2)))': (
    r'between=fragments\(2\)\) averages a piece of it at a time'
  ),
  'ss.outer(SGD, averager=ss.no_averaging())': (
    r'no_averaging\(\) averages nothing'
  ),
  'ss.interleave(3, ss.mean(), INT8)': 'it remembers its last average',
  'ss.fragments(2, "random", INT8)': (
    r'averager mean\(wire=int8\(\)\) remembers its last average'
  ),
  'ss.fragments(2, averager=ss.fragments(3))': (
    r'so does averager fragments\(3\); use a larger k instead'
  ),
  **dict.fromkeys(
    (
      'ss.fragments(2, averager=LATE)',
      'ss.outer(SGD, averager=LATE)',
      'ss.interleave(2, LATE, ss.gossip())',
    ),
    r'averager delayed\(mean\(\), steps=2\) is delayed already',
  ),
  **dict.fromkeys(
    (
      'ss.delayed(ss.delayed(ss.gossip(), 2), 3)',
      'ss.delayed(EAGER, 3)',
      'ss.delayed(ss.fragments(2, averager=EAGER), 3)',
      'ss.delayed(ss.interleave(2, EAGER, ss.gossip()), 3)',
    ),
    'it is delayed already',
  ),
  'ss.delayed(ss.interleave(2, ss.mean(), ss.fragments(2, "random")), 3)': (
    r'interleave\(.*\) cannot be delayed: some of its calls average only a p'
  ),
  'ss.delayed(ss.no_averaging(), 3)': (
    r'no_averaging\(\) cannot be delayed: it averages nothing'
  ),
  'ss.delayed(ss.fragments(2), 3, extrapolate=0.5)': (
    r'extrapolate=0.5: averager fragments\(2\) averages a piece at a time'
  ),
  'check(ss.every(1), ss.delayed(ss.mean(), 3), ss.at_sync(ss.all_reduce()))': (
    'averages later and less often'
  ),
  'check(ss.every(4), ss.delayed(ss.gossip(), 1), optimizer_state=MOMENTS)': (
    'needs averages of all parameters over all workers, but averager'
  ),
  **dict.fromkeys(
    (
      'ss.eager_outer(optax.adam(0.1)).init(TREE)',
      'ss.eager_outer(optax.chain(optax.clip_by_global_norm(1.0), SGD))'
      '.init(TREE)',
    ),
    'eager_outer needs a linear optimizer',
  ),
}
AT_LEAST = 'at least one synchronization in {} steps'.format
BUDGETS = {
  'budget(ss.every(2))': r'threshold, got every\(2\)',
  'budget(ss.any_of(ss.selsync(1.0), ss.fda(1.0)))': (
    r'one threshold, got any_of\(selsync\(1.0\), fda\(1.0\)\)'
  ),
  'budget(budget())': 'needs a trigger with one threshold',
  'budget(lssr=None)': 'one of lssr, bytes_per_step, and',
  'budget(bytes_per_step=9.0)': 'got lssr=0.9, bytes_per_step=9.0',
  'budget(ss.selsync(0.3, vote_every=10))': (
    r'^selsync\(0.3, vote_every=10\): at most one synchronization in 10 steps, '
    'and the budget is one in 10 steps, .*; lower the 10 steps, or allow fewer '
    'synchronizations$'
  ),
  'selsync(max_period=10)': (
    rf'^budgeted\(selsync\(0.3\), lssr=0.9\) and max_interval\(10\): '
    f'{AT_LEAST(10)}, and the budget is one in 10 steps, so nothing is left to '
    'decide; raise the 10 steps, or allow more synchronizations$'
  ),
  'selsync(max_period=8, vote_every=5)': (
    f'{AT_LEAST(10)}, and the budget is one in 10 steps'
  ),
  'ss.any_of(budget(), ss.max_interval(8))': (
    f'{AT_LEAST(8)}, and the budget is one in 10 steps'
  ),
  'ss.any_of(ss.any_of(budget()), ss.post_local(5, 8))': AT_LEAST(8),
  'budget(ss.any_of(ss.fda(1.0), ss.max_interval(8)))': AT_LEAST(8),
  'ss.min_interval(20, trigger=budget())': (
    r'^budgeted\(.*\): at most one synchronization in 20 steps'
  ),
  'ss.min_interval(20, trigger=ss.any_of(budget()))': (
    'at most one synchronization in 20 steps'
  ),
}
REFUSED = RANGES | TOGETHER | AVERAGERS | BUDGETS
ACCEPTED = (
  'ss.any_of(budget(), ss.max_interval(11))',
  'ss.min_interval(9, trigger=budget())',
  # It bounds its own synchronizations.
  'ss.any_of(budget(), ss.min_interval(20, trigger=ss.every(3)))',
)


@pytest.mark.parametrize('call', REFUSED)
def test_a_part_that_cannot_be_is_refused_with_the_rule(call):
  with pytest.raises(ValueError, match=REFUSED[call]):
    eval(call)


def test_parts_that_can_be_are_accepted():
  decayed = optax.add_decayed_weights(0.1), optax.sgd(0.1, 0.9, nesterov=True)
  ss.eager_outer(optax.chain(*decayed)).init(TREE)
  for late in (LATE, EAGER):  # Moments may be averaged with a late average.
    check(ss.every(4), late, optimizer_state=MOMENTS)
  applied(ss.micro(0.02), 4)
  for call in ACCEPTED:  # These bounds leave the budget a choice.
    (rate,) = eval(call).traits.budgets
    assert rate(None) == pytest.approx(0.1)
