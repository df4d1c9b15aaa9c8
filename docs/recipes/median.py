"""The median of the workers on digits: a method in a file outside the package.

  python train.py --config=docs/recipes/median.py
  python compare.py --config=docs/recipes/median.py --methods=median,local_sgd

One diverged worker spoils a mean over workers. A coordinate-wise median
tolerates diverged workers if they are fewer than half. It costs an all-gather
of the parameters in place of an all-reduce.

References:
  Yin et al., `Byzantine-Robust Distributed Learning: Towards Optimal
  Statistical Rates`, ICML 2018, on medians of gradients. Here the medians are
  over parameters.
"""

import jax
from jax import flatten_util
import jax.numpy as jnp

import selsync_jax as ss
from selsync_jax.configs import digits


def _coordinate_wise_median():
  """Returns an averager that takes the elementwise median over workers."""

  def apply(tree, state):
    vector, rebuild = flatten_util.ravel_pytree(tree)  # One message.
    everyone = jax.lax.all_gather(vector, ss.AXIS)
    return rebuild(jnp.median(everyone, axis=0)), state

  return ss.Averager(lambda tree: (), apply)


@ss.register_method
def median(context, *, period: int = 8):
  """Takes the median of the parameters periodically.

  Args:
    context: not needed.
    period: steps from one median to the next.
  """
  del context
  return ss.Strategy(ss.every(period), _coordinate_wise_median())


def get_config(method='median'):
  """Returns the config of digits, in which this method is known, too."""
  return digits.get_config(method)
