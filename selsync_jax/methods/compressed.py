"""Methods that average the gradients at every step, in fewer bytes than BSP."""

from typing import Literal

from selsync_jax.config import Count
from selsync_jax.config import Fraction
from selsync_jax.config import NonNegative
from selsync_jax.methods.parts import Context
from selsync_jax.sync import reducers
from selsync_jax.sync import sparse
from selsync_jax.sync.lazy import lazy
from selsync_jax.sync.power_sgd import power_sgd as low_rank
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.triggers import every


def top_k(context: Context, *, density: Fraction = 0.01) -> Strategy:
  """Sends the largest elements: `every(1)`, `top_k(density)`.

  Args:
    density: the fraction of the elements that a worker sends, in (0, 1]; what
      it does not send waits in its error memory.

  References:
    Stich, Cordonnier and Jaggi, `Sparsified SGD with Memory`, NeurIPS 2018.
  """
  return Strategy(every(1), reducer=sparse.top_k(density))


def micro(
  context: Context,
  *,
  density: Fraction = 0.01,
  capacity: sparse.Capacity | None = None,
) -> Strategy:
  """Selects from disjoint parts: `every(1)`, `micro(density, capacity)`.

  Args:
    density: the fraction of the elements that the workers together select, in
      (0, 1]; the paper's is 0.001.
    capacity: not of the paper: a fixed length of the messages, relative to a
      worker's share of the selected elements, at least 1; what does not fit
      waits. By default a message holds all that is selected.

  References:
    Yoon and Oh, `MiCRO: Near-Zero Cost Gradient Sparsification for Scaling and
    Accelerating Distributed DNN Training`, HiPC 2023.
  """
  return Strategy(every(1), reducer=sparse.micro(density, capacity=capacity))


def exdyna(
  context: Context,
  *,
  density: Fraction = 0.01,
  capacity: sparse.Capacity | None = None,
) -> Strategy:
  """Selects from balanced parts: `every(1)`, `exdyna(density, capacity)`.

  Args:
    density: the fraction of the elements that the workers together select, in
      (0, 1]; the paper's is 0.001.
    capacity: not of the paper: a fixed length of the messages, relative to a
      worker's share of the selected elements, at least 1; what does not fit
      waits. By default a message holds all that is selected.

  References:
    Yoon and Oh, `Preserving Near-Optimal Gradient Sparsification Cost for
    Scalable Distributed Deep Learning`, CCGrid 2024.
  """
  return Strategy(every(1), reducer=sparse.exdyna(density, capacity=capacity))


def lag(
  context: Context,
  *,
  xi: NonNegative = 0.1,
  history: Count = 10,
  bits: Literal[4, 8] | None = None,
) -> Strategy:
  """Reuses gradients that hardly change: `every(1)`, `lazy(xi, history)`.

  Args:
    xi: the change of a worker's gradient that it does not send, relative to
      each of the last mean gradients, squared; at least 0. The paper's is 0.1.
    history: D, the number of mean gradients that count; the paper's is 10.
    bits: the bits of an element that is sent, 4 or 8, which makes it LAQ;
      `None` is float32.

  References:
    Chen, Giannakis, Sun and Yin, `LAG: Lazily Aggregated Gradient for
    Communication-Efficient Distributed Learning`, NeurIPS 2018 (LAG-WK).
  """
  return Strategy(every(1), reducer=lazy(xi, history, bits=bits))


def power_sgd(context: Context, *, rank: Count = 4) -> Strategy:
  """Approximates gradients: `every(1)`, `power_sgd(rank)`.

  Args:
    rank: the rank of the approximation, at least 1; the paper's are 1, 2, and
      4.

  References:
    Vogels, Karimireddy and Jaggi, `PowerSGD: Practical Low-Rank Gradient
    Compression for Distributed Optimization`, NeurIPS 2019.
  """
  return Strategy(every(1), reducer=low_rank(rank, context.seed))


def int8(context: Context) -> Strategy:
  """Averages the gradients in int8: `every(1)`, `int8()`.

  References:
    Tang et al., `DoubleSqueeze: Parallel Stochastic Gradient Descent with
    Double-Pass Error-Compensated Compression`, ICML 2019.
  """
  return Strategy(every(1), reducer=reducers.int8())
