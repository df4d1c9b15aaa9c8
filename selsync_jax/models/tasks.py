"""Training objectives: the loss and the metrics of a batch.

A batch is a dict of arrays with a leading axis of examples. Its `mask`, bool,
is False for padding examples; they count in no metric and no gradient, except
that batch normalization includes them in its statistics. A `loss_mask`
[batch, ...] excludes tokens from loss and metrics. It is 1 for tokens that
count and 0 elsewhere. The weight of an example is its number of counted tokens.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
import re
import types
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped
import numpy as np
import optax

from selsync_jax.array_names import by_name
from selsync_jax.config import Registry
from selsync_jax.models import token_weights
from selsync_jax.models.token_weights import Batch
from selsync_jax.models.token_weights import token_mean as token_mean

Derive = Callable[[Mapping[str, Any]], dict[str, Any]]
_NAME = re.compile('[A-Za-z][A-Za-z0-9_]*')  # A metric's name.


class Goal(NamedTuple):
  """The metric that judges a run, and the better direction of all metrics."""

  main: str = 'loss'
  higher: tuple[str, ...] = ()  # For any other metric, lower is better.


class Task(NamedTuple):
  """A training objective: a model's input, its loss and its metrics."""

  inputs: str  # The name of the model's input in a batch.
  # `(outputs, batch) -> dict` of arrays [batch]: the `loss` of each example,
  # which training minimizes, and other metrics, whose means are reported.
  example_metrics: Callable[[Any, Batch], dict[str, Array]]
  # `means -> dict`: a data set's metrics that are functions of these means.
  derived_metrics: Derive = lambda means: {}
  units: Mapping[str, str] = types.MappingProxyType({})  # By metric.
  goal: Goal = Goal()
  # `outputs -> names` of metrics that follow from the outputs' shape, whatever
  # the model predicts. Evaluations skip them.
  certain: Callable[[Any], Sequence[str]] = lambda outputs: ()
  # Converts a batch's input to the model's input, on the device.
  prepare: Callable[[Any], Any] = lambda inputs: inputs
  # Names of arrays of token ids, whole numbers below the number of classes.
  ids: tuple[str, ...] = ()

  def read(self, batch: Batch) -> Any:
    """Returns the model's input from a batch."""
    return self.prepare(jnp.asarray(batch[self.inputs]))


def classification(
  logits: Float[Array, 'batch classes'], batch: Batch
) -> dict[str, Shaped[Array, 'batch']]:
  """Returns cross entropy (nats), top-1 accuracy and top-5 accuracy."""
  label = batch['label']
  predictions = lax.top_k(logits, min(5, logits.shape[-1]))[1]
  correct = predictions == label[:, None]
  return {
    'loss': _cross_entropy(logits, label),
    'accuracy': correct[:, 0],
    'top5': jnp.any(correct, axis=-1),
  }


def _certain(logits: Float[Array, 'batch classes']) -> Sequence[str]:
  """Returns `top5` if there are at most five classes."""
  return ['top5'] if logits.shape[-1] <= 5 else []


def language_modeling(
  logits: Float[Array, 'batch time classes'], batch: Batch
) -> dict[str, Float[Array, 'batch']]:
  """Returns cross entropy (nats) and accuracy, as means over each segment."""
  targets = batch['targets']
  if 'loss_mask' in batch:  # Excluded targets may be any number.
    targets = jnp.where(batch['loss_mask'] != 0, targets, 0)
  correct = jnp.argmax(logits, axis=-1) == targets
  return {
    'loss': token_mean(_cross_entropy(logits, targets), batch),
    'accuracy': token_mean(correct, batch),
  }


def _perplexity(means):
  return {'perplexity': jnp.exp(means['loss'])}


def regression(
  predictions: Float[Array, 'batch 1'], batch: Batch
) -> dict[str, Float[Array, 'batch']]:
  """Returns the squared error."""
  return {'loss': jnp.square(predictions[:, 0] - batch['target'])}


def _cross_entropy(logits, target):
  return optax.softmax_cross_entropy_with_integer_labels(
    logits.astype(jnp.float32), target
  )


TASKS = Registry(
  'task',
  {
    'classification': Task(
      'image',
      classification,
      units={'loss': 'nats'}
      | dict.fromkeys(('accuracy', 'top5'), 'share of examples'),
      goal=Goal('accuracy', higher=('accuracy', 'top5')),
      certain=_certain,
    ),
    'language_modeling': Task(
      'inputs',
      language_modeling,
      _perplexity,
      units={'loss': 'nats per token', 'accuracy': 'share of tokens'},
      goal=Goal('perplexity', higher=('accuracy',)),
      ids=('inputs', 'targets'),
    ),
    'regression': Task('features', regression, units={'loss': 'squared error'}),
  },
)


def register_task(
  inputs: str,
  derived_metrics: Derive = lambda means: {},
  units: Mapping[str, str] = types.MappingProxyType({}),
  main: str = 'loss',
  higher: Sequence[str] = (),
  ids: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
  """Adds a custom task to the table, under the function's name.

  The decorated function is the `example_metrics` of a `Task`. The arguments are
  fields of `Task` and `Goal`.

  Args:
    inputs: the array that the model reads.
    derived_metrics: metrics of a data set, as functions of the metrics' means.
    units: the units of metrics, by name.
    main: the metric that judges a run.
    higher: the metrics for which higher is better.
    ids: arrays of token ids or labels. An id outside the data set's
      `num_classes` is an error, which JAX would not notice.

  Raises:
    ConfigError: if another task has this name.
  """

  def register(example_metrics):
    goal = Goal(main, tuple(higher))
    task = Task(
      *(inputs, example_metrics, derived_metrics, units, goal), ids=tuple(ids)
    )
    return TASKS.register(example_metrics, task)

  return register


def lacks(name: str, array: str, batch: Batch) -> str:
  """Returns the message that a batch lacks an array of a task."""
  names = ', '.join(batch)
  return f'config.data: task {name} reads {array!r}, but a batch has {names}'


def check_model(
  model: nn.Module, task: Task, shapes: Any, batch: Batch, classes: int
) -> Any:
  """Checks that a model can be trained; returns its outputs' shapes."""
  params, model_state = shapes['params'], shapes['model_state']
  for name, leaf in by_name(params).items():
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
      raise ValueError(f'parameter {name} is {leaf.dtype}: must be floating')
  for name, leaf in by_name({'params': params, **model_state}).items():
    if not leaf.size:
      shape = f'array {name} has shape {leaf.shape}'
      raise ValueError(f'{shape}: must not be empty')
    if not _can_be_read_back(leaf.dtype):
      raise ValueError(f'array {name} is {leaf.dtype}: cannot be saved')
  train = functools.partial(_apply, model, task)
  key = jax.random.key(0)
  trained, after = jax.eval_shape(train, params, model_state, batch, key)
  if _forms(after) != _forms(model_state):
    raise ValueError(
      f'state {_forms(model_state)} becomes {_forms(after)} in a step: shapes '
      'must not change'
    )
  outputs = jax.eval_shape(train, params, model_state, batch)
  for scores in (trained, outputs):
    if not isinstance(scores, jax.ShapeDtypeStruct):
      continue  # The task may understand other outputs.
    if not jnp.issubdtype(scores.dtype, jnp.floating):
      raise ValueError(f'returns {scores.dtype}: must be floating')
    shape = scores.shape
    examples = len(batch[task.inputs])
    if shape[:1] != (examples,) or shape[-1:] != (classes,):
      raise ValueError(
        f'returns {shape} for {examples} examples: must be '
        f'[examples, ..., {classes}]'
      )
  return outputs


def _can_be_read_back(dtype: Any) -> bool:
  """Whether safetensors can write and read arrays of a dtype."""
  return dtype == jnp.bfloat16 or getattr(dtype, 'isbuiltin', 0) == 1


def _apply(model, task, params, model_state, batch, key=None):
  """Returns outputs, and in training, with a key, also the new state."""
  variables, how = {'params': params, **model_state}, {}
  if key is not None:
    how = {'mutable': list(model_state), 'rngs': {'dropout': key}}
  inputs = task.read(batch)
  return model.apply(variables, inputs, train=key is not None, **how)


def _forms(tree: Any) -> str:
  """Returns name, dtype and shape of each array."""
  return ', '.join(
    f'{name} {leaf.dtype}{list(leaf.shape)}'
    for name, leaf in by_name(tree).items()
  )


def check_metrics(task: Task, outputs: Any, batch: Batch) -> list[str]:
  """Returns the names of all metrics; checks that they can be reported."""
  values = jax.eval_shape(task.example_metrics, outputs, batch)
  check_names('a task', values)
  if 'loss' not in values:
    raise ValueError(f'a task must return a loss, got {", ".join(values)}')
  for name, value in values.items():
    if value.shape != batch['mask'].shape or not _is_real(value.dtype):
      raise ValueError(
        f'metric {name} is {value.dtype}{list(value.shape)}: must be a real '
        'number for each example'
      )
  derived = derived_metrics(task, dict.fromkeys(values, np.float32(1)))
  if both := sorted(values.keys() & derived.keys()):
    raise ValueError(f'metrics and derived metrics both have {both[0]!r}')
  return [*values, *derived]


def derived_metrics(task: Task, means: Mapping[str, Any]) -> dict[str, float]:
  """Returns the metrics derived from means; checks their types."""
  derived = task.derived_metrics(means)
  check_names('derived_metrics', derived)
  for name, value in derived.items():
    if np.ndim(value) or not _is_real(np.asarray(value).dtype):
      raise ValueError(f'derived metric {name} is {value!r}: must be a number')
  return {name: float(value) for name, value in derived.items()}


def _is_real(dtype: Any) -> bool:
  kinds = (jnp.bool_, jnp.integer, jnp.floating)
  return any(jnp.issubdtype(dtype, kind) for kind in kinds)


def check_names(what: str, metrics: Any) -> None:
  """Raises `ValueError` unless metrics are a dict with valid column names."""
  if not isinstance(metrics, Mapping):
    kind = type(metrics).__name__
    raise ValueError(f'{what} must return a dict of metrics, got a {kind}')
  for name in metrics:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
      raise ValueError(
        f'metric {name!r}: the name must start with a letter, and continue '
        'with letters, digits and _'
      )


def run_once() -> dict[str, Any] | None:
  """Returns compiler options for a program that runs once, as `init` does."""
  if jax.default_backend() != 'cpu':
    return None
  # Optimizing takes longer than running (ResNet-18: 9 s instead of 1 s).
  return {'xla_backend_optimization_level': 0}


def init(
  model: nn.Module, task: Task, batch: Batch, key: Array
) -> tuple[Any, Any]:
  """Returns parameters and other model state (batch statistics)."""
  traced = functools.partial(traced_init, model, task)
  compiled = jax.jit(traced, compiler_options=run_once())
  return compiled({task.inputs: batch[task.inputs]}, key)


def traced_init(
  model: nn.Module, task: Task, batch: Batch, key: Array
) -> tuple[Any, Any]:
  """Initializes a model inside a compiled program."""
  return split(model.init(key, task.read(batch), train=False))


def init_shapes(model: nn.Module, task: Task, batch: Batch) -> tuple[Any, Any]:
  """Returns the shapes of the results of `init`, without computing them."""
  init = functools.partial(traced_init, model, task)
  return jax.eval_shape(init, batch, jax.random.key(0))


def split(variables: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
  """Separates the parameters from the other collections of a flax model."""
  model_state = dict(variables)
  return model_state.pop('params'), model_state


def metric_sums(
  task: Task, outputs: Any, batch: Batch
) -> dict[str, Float[Array, '']]:
  """Returns sums of metrics over the unmasked examples, and their `count`.

  With a `loss_mask`, also returns the sum of their weights.
  """
  metrics = task.example_metrics(outputs, batch)
  return token_weights.sums(metrics, batch) | token_weights.totals(batch)


def dataset_metrics(task: Task, sums: Mapping[str, Any]) -> dict[str, float]:
  """Returns means and derived metrics, given the sums over a data set.

  All are NaN if the loss is NaN, because an accuracy would have compared NaNs,
  or if no token counts.
  """
  means = token_weights.means(sums)
  numbers = {k: float(x) for k, x in means.items()}
  numbers |= derived_metrics(task, means)
  if math.isnan(numbers['loss']) or not token_weights.weight(sums):
    return dict.fromkeys(numbers, math.nan)
  return numbers


def train_loss(
  model: nn.Module, task: Task
) -> Callable[[Any, Any, Batch, Array], tuple[Array, tuple[Any, Any]]]:
  """Returns `(params, state, batch, key) -> loss, (metrics, state)`.

  Loss and metrics are means over the unmasked examples, with their `count`,
  and their weight if it differs.
  """

  def loss(params, model_state, batch, key):
    outputs, model_state = _apply(model, task, params, model_state, batch, key)
    sums = metric_sums(task, outputs, batch)
    whole = {k: sums[k] for k in ('count', token_weights.WEIGHT) if k in sums}
    metrics = token_weights.means(sums) | whole
    return metrics['loss'], (metrics, model_state)

  return loss


def eval_metric_sums(
  model: nn.Module, task: Task
) -> Callable[[Any, Any, Batch], dict[str, Array]]:
  """Returns `(params, model_state, batch) -> sums`, in evaluation mode."""

  def evaluate(params, model_state, batch):
    outputs = _apply(model, task, params, model_state, batch)
    sums = metric_sums(task, outputs, batch)
    for name in task.certain(outputs):
      del sums[name]
    return sums

  return evaluate


def batch_statistics(
  model: nn.Module, task: Task
) -> Callable[[Any, Any, Batch], tuple[Any, Float[Array, '']]]:
  """Returns `(params, model_state, batch) -> sums, count`, for one batch.

  In training mode a normalization layer moves its running statistic r to
  m r + (1 - m) b, where b is the batch's statistic. Two values of r determine b
  without m. Other state stays unchanged.
  """

  def statistics(params, model_state, batch):
    def moved(start):
      state = jax.tree.map(lambda r: jnp.full_like(r, start), model_state)
      key = jax.random.key(0)
      return _apply(model, task, params, state, batch, key)[1]

    count = jnp.sum(batch['mask'], dtype=jnp.float32)

    def weighted(old, low, high):
      share = 1 - (high - low)
      b = jnp.where(share > 0, low / jnp.where(share > 0, share, 1), old)
      return count * b

    return jax.tree.map(weighted, model_state, moved(0), moved(1)), count

  return statistics
