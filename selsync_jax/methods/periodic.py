"""Methods that synchronize at fixed steps, or at those of a schedule.

The first sentence of a docstring names the parts, from `selsync_jax.sync`.
"""

from collections.abc import Mapping
from typing import Any

from selsync_jax.config import Count
from selsync_jax.config import Fraction
from selsync_jax.config import NonNegative
from selsync_jax.config import Positive
from selsync_jax.config import Probability
from selsync_jax.methods.parts import Context
from selsync_jax.methods.parts import outer_optimizer
from selsync_jax.sync import averagers
from selsync_jax.sync import drift
from selsync_jax.sync import exchange
from selsync_jax.sync import reducers
from selsync_jax.sync import sparse_wire
from selsync_jax.sync import triggers
from selsync_jax.sync.fragments import fragments as in_fragments
from selsync_jax.sync.robust import robust_mean
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.triggers import every
from selsync_jax.sync.triggers import Period


def bsp(context: Context) -> Strategy:
  """Averages the gradients at every step: `every(1)`, `all_reduce()`.

  This is bulk-synchronous parallel training, the baseline of the others.

  References:
    Valiant, `A Bridging Model for Parallel Computation`, CACM 1990 (the name).
  """
  return Strategy(every(1), reducer=reducers.all_reduce())


def local_sgd(context: Context, *, period: Period = 8) -> Strategy:
  """Averages the parameters periodically: `every(period)`, `mean()`.

  Args:
    period: steps from one average to the next; the default is ours.

  References:
    Stich, `Local SGD Converges Fast and Communicates Little`, ICLR 2019.
  """
  return Strategy(every(period), averagers.mean())


def post_local(
  context: Context, *, switch: NonNegative = 10.0, period: Period = 8
) -> Strategy:
  """Averages at every step at first: `post_local(switch, k)`, `mean()`.

  Args:
    switch: the number of first epochs, in which every step averages; the
      paper's end at the first decay of the learning rate.
    period: steps from one average to the next afterwards; the paper has 16 and
      32.

  References:
    Lin et al., `Don't Use Large Mini-Batches, Use Local SGD`, ICLR 2020.
  """
  steps = round(switch * context.steps_per_epoch)
  return Strategy(triggers.post_local(steps, period), averagers.mean())


def qsr(
  context: Context, *, alpha: Positive = 0.1, h_min: Period = 4
) -> Strategy:
  """Averages at a period of (alpha / learning rate)^2: `qsr(alpha, h_min)`.

  Args:
    alpha: the learning rate at which the rule asks for one step; the default
      is ours. The paper has 0.0175 for AdamW with a peak of 0.008.
    h_min: the fewest steps from one average to the next; the paper has 4.

  References:
    Gu et al., `A Quadratic Synchronization Rule for Distributed Deep Learning`,
    ICLR 2024.
  """
  trigger = triggers.qsr(alpha, h_min, context.learning_rate)
  return Strategy(trigger, averagers.mean())


def fedavg(
  context: Context, *, fraction: Fraction = 1.0, epochs: Positive = 0.25
) -> Strategy:
  """Averages a random subset of the workers, and gives all workers the result.

  `every(k)`, `subset_mean(fraction)`.

  Args:
    fraction: C, the fraction of the workers to average, in (0, 1].
    epochs: E, epochs from one average to the next; 0.25 is from Tyagi and
      Swany.

  References:
    McMahan et al., `Communication-Efficient Learning of Deep Networks from
    Decentralized Data`, AISTATS 2017; (C, E) as in Tyagi and Swany, CLUSTER
    2023, section `Evaluation`.
  """
  period = max(1, round(epochs * context.steps_per_epoch))
  averager = averagers.subset_mean(fraction, context.seed)
  return Strategy(every(period), averager)


def fedprox(
  context: Context, *, epochs: Positive = 0.25, mu: NonNegative = 0.01
) -> Strategy:
  """Averages parameters, and pulls workers to the last average between.

  `every(k)`, `mean()`, `proximal(mu)`.

  Args:
    epochs: epochs from one average to the next, as in `fedavg`.
    mu: the weight of the proximal term, at least 0; the paper's are 0.001 to 1.

  References:
    Li et al., `Federated Optimization in Heterogeneous Networks`, MLSys 2020.
  """
  average = fedavg(context, epochs=epochs)
  return average._replace(averager=averagers.mean(), reducer=drift.proximal(mu))


def scaffold(context: Context, *, epochs: Positive = 0.25) -> Strategy:
  """Averages parameters, and corrects gradients by what all workers saw.

  `every(k)`, `mean()`, `scaffold()`.

  Args:
    epochs: epochs from one average to the next, as in `fedavg`.

  References:
    Karimireddy et al., `SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning`, ICML 2020, Algorithm 1 with option II.
  """
  average = fedavg(context, epochs=epochs)
  return average._replace(averager=averagers.mean(), reducer=drift.scaffold())


NESTEROV = dict(name='sgd', learning_rate=0.7, momentum=0.9, nesterov=True)
"""The outer optimizer of DiLoCo's paper."""


def diloco(
  context: Context, *, period: Period = 50, outer: Mapping[str, Any] = NESTEROV
) -> Strategy:
  """Steps an outer optimizer: `every(period)`, `outer(optimizer)`.

  Args:
    period: H, steps from one outer step to the next; the paper's is 500.
    outer: an optimizer of optax and its arguments, for the mean update of the
      workers.

  References:
    Douillard et al., `DiLoCo: Distributed Low-Communication Training of
    Language Models`, 2023, Algorithm 1.
  """
  return Strategy(every(period), averagers.outer(outer_optimizer(outer)))


def streaming_diloco(
  context: Context,
  *,
  period: Period = 5,
  fragments: Count = 4,
  outer: Mapping[str, Any] = NESTEROV,
) -> Strategy:
  """Steps an outer optimizer, part by part.

  `every(period)`, `fragments(k, averager=outer(optimizer))`.

  Args:
    period: steps from one synchronization to the next; each part of the
      parameters takes its outer step every `period * fragments` steps, the
      paper's H.
    fragments: the number of parts that the parameters are divided into.
    outer: an optimizer of optax and its arguments, as in `diloco`.

  References:
    Douillard et al., `Streaming DiLoCo with Overlapping Communication: Towards
    a Distributed Free Lunch`, 2025, section 2.2. Its tau and alpha are `steps`
    and `local` of `sync.delay`; its 4-bit messages are the wire `int4`, whose
    integers are evenly spaced, not floating-point.
  """
  step = averagers.outer(outer_optimizer(outer))
  return Strategy(every(period), in_fragments(fragments, averager=step))


SGD = dict(name='sgd', learning_rate=1.0)


def sparse_loco(
  context: Context,
  *,
  period: Period = 50,
  density: Fraction = 0.02,
  decay: Probability = 0.95,
  outer: Mapping[str, Any] = SGD,
) -> Strategy:
  """Sends the largest changes: `every(period)`, `outer(optimizer)`, `sparse`.

  Args:
    period: H, steps from one average to the next.
    density: the fraction of the parameters whose change a worker sends, in (0,
      1]; the paper's is 0.01 to 0.03.
    decay: what is left of a worker's memory of unsent changes after an average,
      in [0, 1]; it stands for an outer momentum.
    outer: an optimizer of optax and its arguments, for the mean update of the
      workers; the paper's has no momentum.

  References:
    Sarfi et al., `Communication Efficient LLM Pre-training with SparseLoCo`,
    2025. The default period, decay and outer learning rate are ours.
  """
  wire = sparse_wire.sparse(density, decay=decay)
  average = averagers.mean(wire=wire)
  averager = averagers.outer(outer_optimizer(outer), averager=average)
  return Strategy(every(period), averager)


ADAM = dict(name='adam', learning_rate=0.01, b1=0.9, b2=0.99, eps=1e-3)


def fedadam(
  context: Context, *, period: Period = 8, outer: Mapping[str, Any] = ADAM
) -> Strategy:
  """Steps Adam on the mean update: `every(period)`, `outer(optimizer)`.

  Args:
    period: steps from one outer step to the next; the default is ours.
    outer: an optimizer of optax and its arguments. The default betas, and eps
      (tau), are the paper's, which tunes the rate for each task.

  References:
    Reddi et al., `Adaptive Federated Optimization`, ICLR 2021, Algorithm 2.
    Adam here is optax's, which corrects the bias of young moments.
  """
  return diloco(context, period=period, outer=outer)


YOGI = dict(name='yogi', learning_rate=0.01, b1=0.9, b2=0.99, eps=1e-3)


def fedyogi(
  context: Context, *, period: Period = 8, outer: Mapping[str, Any] = YOGI
) -> Strategy:
  """Steps Yogi on the mean update: `every(period)`, `outer(optimizer)`.

  Args:
    period: steps from one outer step to the next; the default is ours.
    outer: an optimizer of optax and its arguments, as in `fedadam`.

  References:
    Reddi et al., `Adaptive Federated Optimization`, ICLR 2021, Algorithm 2.
  """
  return diloco(context, period=period, outer=outer)


ADAGRAD = dict(
  name='adagrad', learning_rate=0.1, initial_accumulator_value=1e-6, eps=1e-3
)


def fedadagrad(
  context: Context, *, period: Period = 8, outer: Mapping[str, Any] = ADAGRAD
) -> Strategy:
  """Steps Adagrad on the mean update: `every(period)`, `outer(optimizer)`.

  Args:
    period: steps from one outer step to the next; the default is ours.
    outer: an optimizer of optax and its arguments. The accumulator begins with
      the square of tau, 1e-3.

  References:
    Reddi et al., `Adaptive Federated Optimization`, ICLR 2021, Algorithm 2.
    Adagrad here is optax's: tau is in the accumulator and, as eps, below the
    root.
  """
  return diloco(context, period=period, outer=outer)


def muloco(
  context: Context, *, period: Period = 30, outer: Mapping[str, Any] = NESTEROV
) -> Strategy:
  """Steps an outer optimizer above Muon: `every(period)`, `outer(optimizer)`.

  The workloads here give it Muon as the local optimizer; elsewhere that is
  `config.optimizer`.

  Args:
    period: H, steps from one outer step to the next; the paper's is 30.
    outer: an optimizer of optax and its arguments, as in `diloco`.

  References:
    Therien et al., `MuLoCo: Muon is a Practical Inner Optimizer for DiLoCo`,
    2025.
  """
  return diloco(context, period=period, outer=outer)


def edit(
  context: Context, *, period: Period = 50, outer: Mapping[str, Any] = NESTEROV
) -> Strategy:
  """Steps an outer optimizer on a robust mean.

  `every(period)`, `outer(optimizer, averager=robust_mean())`.

  Args:
    period: steps from one outer step to the next; the default is ours.
    outer: an optimizer of optax and its arguments, as in `diloco`.

  References:
    Cheng et al., `EDiT: A Local-SGD-Based Efficient Distributed Training Method
    for Large Language Models`, ICLR 2025, without its averages layer by layer.
  """
  average = robust_mean()
  averager = averagers.outer(outer_optimizer(outer), averager=average)
  return Strategy(every(period), averager)


PAIRWISE = dict(name='sgd', learning_rate=0.7, momentum=0.5)


def noloco(
  context: Context, *, period: Period = 50, outer: Mapping[str, Any] = PAIRWISE
) -> Strategy:
  """Steps an outer optimizer in random pairs of workers.

  `every(period)`, `outer(optimizer, averager=gossip('random'))`.

  Args:
    period: steps from one outer step to the next; the default is ours.
    outer: an optimizer of optax and its arguments. The learning rate is beta,
      and gamma, which pulls partners together, equals it.

  References:
    Kolehmainen et al., `NoLoCo: No-all-reduce Low Communication Training Method
    for Large Models`, 2025. The defaults are ours.
  """
  pairs = exchange.gossip('random', context.seed)
  averager = averagers.outer(outer_optimizer(outer), averager=pairs)
  return Strategy(every(period), averager)


HEAVY_BALL = dict(name='sgd', learning_rate=1.0, momentum=0.5)


def slowmo(
  context: Context,
  *,
  period: Period = 12,
  outer: Mapping[str, Any] = HEAVY_BALL,
) -> Strategy:
  """Adds slow momentum to local SGD: `every(period)`, `outer(optimizer)`.

  The paper divides the mean update by the local learning rate before the
  momentum, and multiplies by it afterwards. The two differ only while a
  schedule changes the rate.

  Args:
    period: tau, steps from one outer step to the next; the paper's is 12 for
      images.
    outer: an optimizer of optax and its arguments. The default rate, alpha, is
      the paper's; its momentum, beta, is 0.4 to 0.8.

  References:
    Wang et al., `SlowMo: Improving Communication-Efficient Distributed SGD with
    Slow Momentum`, ICLR 2020, Algorithm 1; with one worker it is Lookahead with
    momentum, and earlier it is BMUF's block momentum (Chen and Huo, ICASSP
    2016).
  """
  return diloco(context, period=period, outer=outer)


def sparta(
  context: Context, *, fragments: Count = 200, period: Period = 1
) -> Strategy:
  """Averages random parameters: `every(period)`, `fragments(k, 'random')`.

  Args:
    fragments: k; one k-th of the parameters is averaged. The paper's share is
      0.05 to 0.5 percent, k = 2000 to 200.
    period: steps from one average to the next; the paper's is 1.

  References:
    Beton et al., `Improving the Efficiency of Distributed Training using Sparse
    Parameter Averaging`, MCDC workshop at ICLR 2025.
  """
  averager = in_fragments(fragments, 'random', seed=context.seed)
  return Strategy(every(period), averager)


def gossip(
  context: Context,
  *,
  topology: exchange.Topology = 'exponential',
  period: Period = 1,
) -> Strategy:
  """Averages with other workers in pairs: `every(period)`, `gossip(topology)`.

  Args:
    topology: `exponential`, `ring`, or `random`.
    period: steps from one exchange to the next; the papers' is 1.

  References:
    Lian et al., `Can Decentralized Algorithms Outperform Centralized
    Algorithms?`, NeurIPS 2017 (D-PSGD); Ying et al., `Exponential Graph is
    Provably Efficient for Decentralized Deep Training`, NeurIPS 2021.
  """
  return Strategy(every(period), exchange.gossip(topology, context.seed))


def groups(
  context: Context,
  *,
  size: Count = 2,
  how: exchange.Grouping = 'butterfly',
  all_every: Count | None = 10,
  period: Period = 1,
) -> Strategy:
  """Averages within groups: `every(period)`, `groups(size, how, all_every)`.

  This is the lockstep form of two methods whose groups need not wait for slow
  workers; if all workers are equally fast, none waits.

  Args:
    size: the number of workers in a group, a power of two; WAGMA's is the
      square root of N.
    how: the way groups are formed, `butterfly` (WAGMA) or `random` (Prague).
    all_every: averages from one over all workers to the next; WAGMA's tau is
      10. `None` means never, as in Prague.
    period: steps from one average to the next; the papers' is 1.

  References:
    Li et al., `Breaking (Global) Barriers in Parallel Stochastic Optimization
    with Wait-Avoiding Group Averaging`, TPDS 2021 (WAGMA); Luo et al., `Prague:
    High-Performance Heterogeneity-Aware Asynchronous Decentralized Training`,
    ASPLOS 2020 (`random`).
  """
  averager = exchange.groups(size, how, all_every, context.seed)
  return Strategy(every(period), averager)
