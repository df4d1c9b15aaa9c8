"""Gradients, optimizer steps and means, without any notion of time.

Models, data, partitions and optimizers are as in training. All functions
take and return trees of one worker.
"""

from collections.abc import Iterator, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from selsync_jax import optimizers
from selsync_jax.models import tasks
from selsync_jax.sync import flat
from selsync_jax.training.gradient import gradient
from selsync_jax.training.problem import Problem

Tree = Any

_LAST_STEP = 2**31 - 1  # No worker takes that many steps.


class Numerics:
  """Computes gradients and updates of a problem.

  A `model` is a dict of `params`, `model_state` and `opt_state`; `shared` is
  the first two. A `gradient` is a dict of `grads`, `model_state` after the
  forward pass, and `metrics`. The optimizer's options are `config.optimizer`.
  One program computes `width` gradients; a smaller batch is padded, so that no
  result depends on its neighbors.
  """

  def __init__(
    self, problem: Problem, optimizer: dict[str, Any], width: int | None = None
  ):
    self._problem = problem
    options = {k: v for k, v in optimizer.items() if k != 'learning_rate'}
    self._optimizer = functools.partial(optimizers.create_optimizer, **options)
    # On a CPU, convolutions with different weights for each row of a batch are
    # slow (measured on the digits: 2.6 ms for one gradient, 7 to 10 ms for each
    # of 4 to 32).
    self._width = width or (1 if jax.default_backend() == 'cpu' else 8)
    loss = tasks.train_loss(problem.model, problem.task)
    self._backward = gradient(loss, problem.accumulate)
    one = self._gradient if self._width == 1 else jax.vmap(self._gradient)
    self._gradients = jax.jit(one)
    self.update = jax.jit(self._update)
    self._batches: dict[int, Iterator[Any]] = {}
    self._read: dict[int, int] = {}
    self._rates = problem.rates.astype(np.float32)

  def rate(self, step: int) -> np.float32:
    """Returns the learning rate at a step; after the last step it stays."""
    return self._rates[min(step, len(self._rates) - 1)]

  def initial(self) -> Tree:
    """Returns the model that all workers start with."""
    params, model_state = self._problem.init(self._problem.given.arrays)
    opt_state = self._optimizer(learning_rate=0.0).init(params)
    return dict(params=params, model_state=model_state, opt_state=opt_state)

  @functools.cached_property
  def shapes(self) -> dict[str, Tree]:
    """The shapes of the tree of each kind of value."""
    both = self._problem.shapes
    init = self._optimizer(learning_rate=0.0).init
    batch = self._problem.data.example
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    gradient = jax.eval_shape(self._gradient, both, batch, scalar, scalar)
    return {
      'model': both | {'opt_state': jax.eval_shape(init, both['params'])},
      'shared': both,
      'gradient': gradient,
      'metrics': gradient['metrics'],
      'sum': both['params'],
    }

  def gradients(self, rows: Sequence[Sequence[Any]]) -> list[Tree]:
    """Returns the gradients of some `(model, worker, step)`, in order."""
    arguments = [
      (
        shared(model),
        self._batch(worker, step),
        np.int32(worker),
        np.int32(step),
      )
      for model, worker, step in rows
    ]
    if self._width == 1:
      return [self._gradients(*each) for each in arguments]
    results = []
    for first in range(0, len(arguments), self._width):
      some = arguments[first : first + self._width]
      full = [*some, *some[:1] * (self._width - len(some))]
      trees = self._gradients(*jax.tree.map(lambda *x: jnp.stack(x), *full))
      for row in range(len(some)):
        results.append(jax.tree.map(lambda x, row=row: x[row], trees))
    return results

  def _batch(self, worker: int, step: int) -> Any:
    """Returns a worker's batch; consecutive steps share an iterator."""
    if self._read.get(worker) != step:
      batches = self._problem.data.batches([worker], step, _LAST_STEP)
      self._batches[worker] = iter(batches)
    self._read[worker] = step + 1
    batch = next(self._batches[worker])
    return {name: array[0] for name, array in batch.items()}

  def _gradient(self, shared, batch, worker, step):
    # Keys as in `training.step`.
    key = jax.random.fold_in(jax.random.key(self._problem.seed), step)
    key = jax.random.fold_in(key, worker)
    grads, (metrics, model_state) = self._backward(
      shared['params'], shared['model_state'], batch, key
    )
    return {'grads': grads, 'model_state': model_state, 'metrics': metrics}

  def _update(self, model, grads, rate):
    updates, opt_state = self._optimizer(learning_rate=rate).update(
      grads, model['opt_state'], model['params']
    )
    params = optax.apply_updates(model['params'], updates)
    return model | {'params': params, 'opt_state': opt_state}


def shared(tree: Tree) -> Tree:
  """Returns the parameters and batch statistics of a model."""
  return {name: tree[name] for name in ('params', 'model_state')}


def mean(trees: Sequence[Tree]) -> Tree:
  """Returns the mean of floating-point leaves; others are the first tree's."""
  return combine(trees, 1 / len(trees))


@jax.jit
def _add(one, other):
  return jax.tree.map(
    lambda x, y: flat.wide(x) + y if flat.is_float(x) else x, one, other
  )


@jax.jit
def _multiply(tree, scale, like):
  return jax.tree.map(
    lambda x, y: (x * scale).astype(y.dtype) if flat.is_float(x) else x,
    tree,
    like,
  )


def combine(trees: Sequence[Tree], scale: float) -> Tree:
  """Returns the sum of the trees, times `scale`."""
  # One by one: a sum of n trees in one program would be compiled for every n.
  return _multiply(functools.reduce(_add, trees), np.float32(scale), trees[0])
