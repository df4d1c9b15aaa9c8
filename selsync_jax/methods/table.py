"""The methods that only combine parts, one row each.

A row has the parts and the defaults of its fields, which are parameters of
these parts. A method that computes more is a function, as in `adaptive`.
"""

import functools

from selsync_jax.config import Count, NonNegative, Positive
from selsync_jax.methods.row import Method
from selsync_jax.sync import (
  drift,
  exchange,
  optimizer_state,
  reducers,
  sparse,
  triggers,
)
from selsync_jax.sync.averagers import mean, outer, subset_mean
from selsync_jax.sync.fda import fda
from selsync_jax.sync.fragments import fragments
from selsync_jax.sync.lazy import lazy
from selsync_jax.sync.power_sgd import power_sgd
from selsync_jax.sync.robust import robust_mean
from selsync_jax.sync.selsync import selsync
from selsync_jax.sync.sparse_wire import sparse as sparse_wire
from selsync_jax.sync.transformation import Trigger
from selsync_jax.sync.triggers import every, Period

NESTEROV = dict(name='sgd', learning_rate=0.7, momentum=0.9, nesterov=True)
"""The outer optimizer of DiLoCo's paper."""
_TAU = 1e-3
_REDDI = (
  'Reddi et al., `Adaptive Federated Optimization`, ICLR 2021, Algorithm 2.'
)

every_step = functools.partial(every, 1)
paper_change = functools.partial(selsync, smoothing=None)
random_pairs = functools.partial(exchange.gossip, 'random')
random_fragments = functools.partial(fragments, how='random')


def every_epochs(epochs: Positive, steps_per_epoch: int) -> Trigger:
  """Synchronizes after a number of epochs.

  Args:
    epochs: E, epochs from one average to the next; 0.25 is from Tyagi and
      Swany.
  """
  return every(max(1, round(epochs * steps_per_epoch)))


def post_local(
  switch: NonNegative, period: Period, steps_per_epoch: int
) -> Trigger:
  """Synchronizes at each step of the first epochs, and then periodically.

  Args:
    switch: the number of initial epochs in which every step averages; in the
      paper they end at the first decay of the learning rate.
    period: steps from one average to the next afterwards; the paper has 16 and
      32.
  """
  return triggers.post_local(round(switch * steps_per_epoch), period)


def adam_moments(first: Count, second: Count) -> optimizer_state.Moments:
  """Averages each of Adam's moments at a multiple of the period.

  Args:
    first: averages of the parameters from one average of the first moment, `mu`
      in optax, to the next; 3 is from the paper.
    second: averages of the parameters from one average of the second moment,
      `nu` in optax, to the next; 6 is from the paper.
  """
  return optimizer_state.mean(every={'mu': first, 'nu': second})


ROWS = {
  'selsync_paper': Method(
    'Averages when a gradient changes by delta, smoothed by N / 100.',
    dict(trigger=paper_change, averager=mean),
    dict(delta=0.3),
    'Tyagi and Swany, `Accelerating Distributed ML Training via Selective '
    'Synchronization`, CLUSTER 2023, Algorithm 1 and Table I.',
    "This is SelSync with its paper's settings, for 16 workers; Table I has "
    'deltas of 0.3 and 0.5. The steps between two averages are unbounded. With '
    'few workers the measured change is small: at delta 0.3, four workers may '
    'never synchronize after their first step.',
  ),
  'bsp': Method(
    'Averages the gradients at every step.',
    dict(trigger=every_step, reducer=reducers.all_reduce),
    {},
    'Valiant, `A Bridging Model for Parallel Computation`, CACM 1990 (the '
    'name).',
    'This is bulk-synchronous parallel training, the baseline for the others.',
  ),
  'local_sgd': Method(
    'Averages the parameters periodically.',
    dict(trigger=every, averager=mean),
    dict(period=8),
    'Stich, `Local SGD Converges Fast and Communicates Little`, ICLR 2019.',
    'The default is ours.',
  ),
  'partial': Method(
    'Averages one part of the parameters at a time.',
    dict(trigger=every, averager=fragments),
    dict(fragments=8, period=1),
    'Lee, Sahu, He and Avestimehr, `Partial Model Averaging in Federated '
    'Learning: Performance Guarantees and Benefits`, Neurocomputing 2023 '
    '(arXiv 2201.03789).',
    'A part is a slice of every array, and is averaged once in `fragments` '
    'times `period` steps. So it sends as much as local SGD with that period, '
    'evenly. The default number of parts is ours. Reconstructed from the '
    "paper's abstract.",
  ),
  'des_loc': Method(
    "Averages the parameters periodically, and Adam's moments less often.",
    dict(trigger=every, averager=mean, optimizer_state=adam_moments),
    dict(period=8, first=3, second=6),
    'Iacob et al., `DES-LOC: Desynced Low Communication Adaptive Optimizers '
    'for Training Foundation Models`, ICLR 2026 (arXiv 2505.22549).',
    'The default period (K_x) is ours; K_u is `first` periods, and K_v is '
    '`second` periods. With 1 for both it is Local Adam. The workloads here '
    "use Adam with optax's default rate as the local optimizer; elsewhere, set "
    'it in `config.optimizer`.',
    optimizer=dict(name='adam', learning_rate=0.001),
  ),
  'post_local': Method(
    'Averages at every step at first, and periodically afterwards.',
    dict(trigger=post_local, averager=mean),
    dict(switch=10.0, period=8),
    "Lin et al., `Don't Use Large Mini-Batches, Use Local SGD`, ICLR 2020.",
  ),
  'qsr': Method(
    'Averages at a period of (alpha / learning rate)^2.',
    dict(trigger=triggers.qsr, averager=mean),
    dict(alpha=0.1, h_min=4),
    'Gu et al., `A Quadratic Synchronization Rule for Distributed Deep '
    'Learning`, ICLR 2024.',
    'The paper has h_min 4, and alpha 0.0175 for AdamW with a peak of 0.008; '
    'the default alpha is ours.',
  ),
  'fda': Method(
    'Averages when the variance of the parameters over workers exceeds theta.',
    dict(trigger=fda, averager=mean),
    dict(theta=0.1, variant='linear'),
    'Theologitis et al., `Communication-Efficient Distributed Deep Learning '
    'via Federated Dynamic Averaging`, EDBT 2025.',
    'The default theta is ours; 0 averages at every step.',
  ),
  'fedavg': Method(
    'Averages a random subset of the workers, and gives all workers the '
    'result.',
    dict(trigger=every_epochs, averager=subset_mean),
    dict(fraction=1.0, epochs=0.25),
    'McMahan et al., `Communication-Efficient Learning of Deep Networks from '
    'Decentralized Data`, AISTATS 2017; (C, E) as in Tyagi and Swany, CLUSTER '
    '2023, section `Evaluation`.',
  ),
  'fedprox': Method(
    'Averages parameters, and pulls local steps towards the last average.',
    dict(trigger=every_epochs, averager=mean, reducer=drift.proximal),
    dict(epochs=0.25, mu=0.01),
    'Li et al., `Federated Optimization in Heterogeneous Networks`, MLSys '
    '2020.',
  ),
  'scaffold': Method(
    "Averages parameters, and corrects gradients towards all workers' mean.",
    dict(trigger=every_epochs, averager=mean, reducer=drift.scaffold),
    dict(epochs=0.25),
    'Karimireddy et al., `SCAFFOLD: Stochastic Controlled Averaging for '
    'Federated Learning`, ICML 2020, Algorithm 1 with option II.',
  ),
  'diloco': Method(
    "Steps an outer optimizer on the workers' mean update.",
    dict(trigger=every, averager=outer),
    dict(period=50, outer=NESTEROV),
    'Douillard et al., `DiLoCo: Distributed Low-Communication Training of '
    'Language Models`, 2023, Algorithm 1.',
    "The paper's period H is 500.",
  ),
  'streaming_diloco': Method(
    'Steps an outer optimizer, part by part.',
    dict(trigger=every, averager=(fragments, outer)),
    dict(period=5, fragments=4, outer=NESTEROV),
    'Douillard et al., `Streaming DiLoCo with Overlapping Communication: '
    'Towards a Distributed Free Lunch`, 2025, section 2.2.',
    "The paper's H is the period times the number of fragments. Its tau and "
    'alpha are `steps` and `mix` of `sync.delay`; its 4-bit messages are the '
    'wire `int4`, whose integers are evenly spaced, not floating-point.',
  ),
  'sparse_loco': Method(
    'Steps an outer optimizer on the largest changes.',
    dict(trigger=every, averager=(outer, mean, sparse_wire)),
    dict(
      period=50,
      density=0.02,
      decay=0.95,
      outer=dict(name='sgd', learning_rate=1.0),
    ),
    'Sarfi et al., `Communication Efficient LLM Pre-training with SparseLoCo`, '
    '2025.',
    "The paper's density is 0.01 to 0.03, and its outer optimizer has no "
    'momentum; the decay replaces it. The default period (H), decay and outer '
    'learning rate are ours.',
    model_state='recompute',
  ),
  'fedadam': Method(
    'Steps Adam on the mean update.',
    dict(trigger=every, averager=outer),
    dict(
      period=8,
      outer=dict(name='adam', learning_rate=0.01, b1=0.9, b2=0.99, eps=_TAU),
    ),
    _REDDI,
    "The default betas, and eps (tau), are the paper's, which tunes the rate "
    "for each task; the period is ours. Adam here is optax's, with bias "
    'correction.',
  ),
  'fedyogi': Method(
    'Steps Yogi on the mean update.',
    dict(trigger=every, averager=outer),
    dict(
      period=8,
      outer=dict(name='yogi', learning_rate=0.01, b1=0.9, b2=0.99, eps=_TAU),
    ),
    _REDDI,
    'The defaults are as in `fedadam`.',
  ),
  'fedadagrad': Method(
    'Steps Adagrad on the mean update.',
    dict(trigger=every, averager=outer),
    dict(
      period=8,
      outer=dict(
        name='adagrad',
        learning_rate=0.1,
        initial_accumulator_value=_TAU**2,
        eps=_TAU,
      ),
    ),
    _REDDI,
    "Adagrad here is optax's: the accumulator starts at the square of tau, "
    '1e-3, and eps, which equals tau, is below the root. The default period is '
    'ours.',
  ),
  'muloco': Method(
    'Steps an outer optimizer above Muon.',
    dict(trigger=every, averager=outer),
    dict(period=30, outer=NESTEROV),
    'Therien et al., `MuLoCo: Muon is a Practical Inner Optimizer for DiLoCo`, '
    '2025.',
    "The paper's period H is 30. The workloads here use Muon as the local "
    'optimizer; elsewhere, set it in `config.optimizer`.',
    optimizer=dict(name='muon', learning_rate=0.02),
  ),
  'edit': Method(
    'Steps an outer optimizer on a robust mean.',
    dict(trigger=every, averager=(outer, robust_mean)),
    dict(period=50, outer=NESTEROV),
    'Cheng et al., `EDiT: A Local-SGD-Based Efficient Distributed Training '
    'Method for Large Language Models`, ICLR 2025 (arXiv 2412.07210), as in '
    'intelligent-machine-learning/dlrover at commit a731530.',
    'The default period is ours. The released code skips the outer step of a '
    'layer whose change is an outlier on all workers; here its momentum moves.',
  ),
  'noloco': Method(
    'Steps an outer optimizer in random pairs of workers.',
    dict(trigger=every, averager=(outer, random_pairs)),
    dict(period=50, outer=dict(name='sgd', learning_rate=0.7, momentum=0.5)),
    'Kolehmainen et al., `NoLoCo: No-all-reduce Low Communication Training '
    'Method for Large Models`, 2025.',
    'The learning rate is beta; gamma, which pulls partners together, has the '
    'same value. The defaults are ours.',
  ),
  'slowmo': Method(
    'Adds slow momentum to local SGD.',
    dict(trigger=every, averager=outer),
    dict(period=12, outer=dict(name='sgd', learning_rate=1.0, momentum=0.5)),
    'Wang et al., `SlowMo: Improving Communication-Efficient Distributed SGD '
    'with Slow Momentum`, ICLR 2020, Algorithm 1; with one worker it is '
    "Lookahead with momentum, and earlier it is BMUF's block momentum (Chen "
    'and Huo, ICASSP 2016).',
    "The period is the paper's tau, 12 for images, and the rate its alpha; its "
    'momentum, beta, is 0.4 to 0.8. The paper divides the mean update by the '
    'local learning rate before the momentum, and multiplies by it afterwards. '
    'That makes a difference only while a schedule changes the rate.',
  ),
  'sparta': Method(
    'Averages random parameters.',
    dict(trigger=every, averager=random_fragments),
    dict(fragments=200, period=1),
    'Beton et al., `Improving the Efficiency of Distributed Training using '
    'Sparse Parameter Averaging`, MCDC workshop at ICLR 2025.',
    "It averages one k-th of the parameters; k is `fragments`. The paper's "
    'share is 0.05 to 0.5 percent, k = 2000 to 200, at every step.',
  ),
  'gossip': Method(
    'Averages with other workers in pairs.',
    dict(trigger=every, averager=exchange.gossip),
    dict(topology='exponential', period=1),
    'Lian et al., `Can Decentralized Algorithms Outperform Centralized '
    'Algorithms?`, NeurIPS 2017 (D-PSGD); Ying et al., `Exponential Graph is '
    'Provably Efficient for Decentralized Deep Training`, NeurIPS 2021.',
    "The papers' period is 1.",
  ),
  'groups': Method(
    'Averages within groups.',
    dict(trigger=every, averager=exchange.groups),
    dict(size=2, how='butterfly', all_every=10, period=1),
    'Li et al., `Breaking (Global) Barriers in Parallel Stochastic '
    'Optimization with Wait-Avoiding Group Averaging`, TPDS 2021 (WAGMA, '
    '`butterfly`); Luo et al., `Prague: High-Performance Heterogeneity-Aware '
    'Asynchronous Decentralized Training`, ASPLOS 2020, preprint `Ripples` '
    '(arXiv 1909.07973) (`random`, never over all workers).',
    "The papers' period is 1. This is the lockstep form of two methods whose "
    'groups need not wait for slow workers. If all workers are equally fast, '
    'no worker waits.',
  ),
  'top_k': Method(
    'Sends the largest elements of each gradient.',
    dict(trigger=every_step, reducer=sparse.top_k),
    dict(density=0.01),
    'Stich, Cordonnier and Jaggi, `Sparsified SGD with Memory`, NeurIPS 2018.',
    "Unsent elements wait in a worker's error memory.",
  ),
  'micro': Method(
    'Sends the largest elements of disjoint parts of the gradients.',
    dict(trigger=every_step, reducer=sparse.micro),
    dict(density=0.01, capacity=None),
    'Yoon and Oh, `MiCRO: Near-Zero Cost Gradient Sparsification for Scaling '
    'and Accelerating Distributed DNN Training`, HiPC 2023.',
    'By default a message holds all selected elements.',
  ),
  'exdyna': Method(
    'Sends the largest elements of balanced parts of the gradients.',
    dict(trigger=every_step, reducer=sparse.exdyna),
    dict(density=0.01, capacity=None),
    'Yoon and Oh, `Preserving Near-Optimal Gradient Sparsification Cost for '
    'Scalable Distributed Deep Learning`, CCGrid 2024.',
  ),
  'lag': Method(
    'Reuses gradients that hardly change.',
    dict(trigger=every_step, reducer=lazy),
    dict(xi=0.1, history=10, bits=None),
    'Chen, Giannakis, Sun and Yin, `LAG: Lazily Aggregated Gradient for '
    'Communication-Efficient Distributed Learning`, NeurIPS 2018 (LAG-WK).',
  ),
  'power_sgd': Method(
    'Approximates gradients by a low rank.',
    dict(trigger=every_step, reducer=power_sgd),
    dict(rank=4),
    'Vogels, Karimireddy and Jaggi, `PowerSGD: Practical Low-Rank Gradient '
    'Compression for Distributed Optimization`, NeurIPS 2019.',
  ),
  'int8': Method(
    'Averages the gradients in int8.',
    dict(trigger=every_step, reducer=reducers.int8),
    {},
    'Tang et al., `DoubleSqueeze: Parallel Stochastic Gradient Descent with '
    'Double-Pass Error-Compensated Compression`, ICML 2019.',
  ),
}
