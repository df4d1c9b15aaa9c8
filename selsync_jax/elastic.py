"""A run that goes on with another number of workers.

Parameters and model state begin from the consensus; the optimizer's state is
averaged, or cloned from the old workers in turn; what a trigger or a reducer
has measured belongs to the old number of workers and is begun anew. The
learning rate follows the batch of all workers together, or is kept.
"""

import jax
import numpy as np
import optax

from selsync_jax import workers


def _mean(leaf, numbers):
  """The mean over the old workers; of a counter, the first one's."""
  if np.issubdtype(leaf.dtype, np.integer) or leaf.dtype == bool:
    return _first(leaf, numbers)
  mean = np.mean(leaf, axis=0, dtype=np.float64).astype(leaf.dtype)
  return np.broadcast_to(mean, (len(numbers), *mean.shape))


def _first(leaf, numbers):
  return np.broadcast_to(leaf[0], (len(numbers), *leaf.shape[1:]))


def _clone(leaf, numbers):
  return leaf[np.asarray(numbers) % len(leaf)]


RULES = {'mean': _mean, 'clone': _clone}

# The learning rate's factor where the number of workers is `times` what it was.
RATES = {
  'linear': lambda times: times,  # Goyal et al. 2017, section 2.1.
  'keep': lambda times: 1.0,
}


def resize(
  saved: workers.TrainState,
  fresh: workers.TrainState,
  numbers: range,
  rule: str,
  step: int,
) -> workers.TrainState:
  """The state of some of the new workers.

  Args:
    saved: of all old workers, on the host, stacked.
    fresh: of some new worker, not stacked, before its first step.
    numbers: of the new workers wanted.
    rule: for the optimizer's state, a name in `RULES`.
    step: the optimizer step that the new workers have reached; schedules and
      random numbers go on from there.
  """

  def spread(how, tree):
    return jax.tree.map(lambda leaf: how(np.asarray(leaf), numbers), tree)

  optimizer = spread(RULES[rule], saved.opt_state[-1])
  counts = optax.tree.get_all_with_path(optimizer, 'count')
  if counts:
    count = np.full((len(numbers),), step, np.int32)
    optimizer = optax.tree.set(optimizer, count=count)
  anew = workers.replicate(fresh, len(numbers))
  return anew.replace(
    step=np.full((len(numbers),), step, np.int32),
    syncs=_first(np.asarray(saved.syncs), numbers),
    **spread(_mean, saved.shared),
    opt_state=(*anew.opt_state[:-1], optimizer),
    averager_state=spread(_first, saved.averager_state),
  )
