"""The fields of a config that belong to no constructor, each declared once.

Further fields of `data`, `model`, `optimizer`, `schedule`, `sync` and
`virtual_cluster` are parameters of the constructors that these sections name:
see `config.bind`.
"""

from collections.abc import Mapping
import functools
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Interval

from selsync_jax.config import (
  Count,
  flat,
  Index,
  Positive,
  Probability,
  rule,
  Share,
)

_Devices = Annotated[int, Interval(ge=1, le=4096)]
Epochs = Annotated[float, Interval(gt=0, le=1e6)]


class Field(NamedTuple):
  """The default, the range and the documentation of a config's field."""

  default: Any  # A workload or a flag may override it. `None` means not set.
  rule: Any  # An annotation with the allowed values, see `config.rule`.
  sentence: str  # The description in the documentation.
  may_change: bool = False  # At a resume. The other fields identify the run.

  @property
  def values(self) -> str:
    """The allowed values in words; empty if any name is allowed."""
    return '' if self.rule in (str, str | None) else str(rule(self.rule))


# A field that may change when a run resumes.
_changeable = functools.partial(Field, may_change=True)

FIELDS: Mapping[str, Field] = {
  'workers': _changeable(
    4,
    _Devices,
    'N, the number of workers. With the mapper `pmap`, one accelerator each.',
  ),
  'mapper': _changeable(
    'pmap',
    Literal['auto', 'pmap', 'vmap', 'map', 'mesh'],
    '`vmap`: all workers on one device at once; `map`: on one device in turn; '
    '`auto`: the fastest of these, see performance.md; `mesh`: several devices '
    'per worker, see mesh.md.',
  ),
  'device': _changeable(
    'auto',
    Literal['auto', 'cpu', 'gpu', 'tpu'],
    '`auto`: the device that JAX finds; `gpu`, `tpu`, `cpu`: this kind, or an '
    'error.',
  ),
  'mesh.data': _changeable(
    1, _Devices, 'Devices of a worker that hold the same parameters.'
  ),
  'mesh.fsdp': _changeable(
    1,
    _Devices,
    'Devices of a worker that share the parameters, one part each. A worker '
    'has `mesh.data` times `mesh.fsdp` devices.',
  ),
  'seed': Field(
    0,
    Annotated[int, Interval(ge=0, lt=2**31)],
    'The seed of initial weights, shuffling, dropout and sampling.',
  ),
  'init_from': Field(
    None,
    str | None,
    'The weights to start from: a run, a .safetensors or .npz file, or an '
    'orbax folder, see fine-tuning.md. Not set: the seed initializes them.',
  ),
  'init_rename': Field(
    None,
    tuple[Any, ...] | None,
    'Pairs of a regular expression and its replacement, which translate the '
    "names in that file to the model's. A replacement of None leaves an array "
    'out.',
  ),
  'epochs': _changeable(
    None,
    Epochs | None,
    'The length of the run. In an epoch, all workers together read as many '
    'examples as the data set has.',
  ),
  'steps': _changeable(
    None,
    Annotated[int, Interval(ge=1, le=10**8)] | None,
    'The length of the run in steps; overrides `epochs`.',
  ),
  'batch_size': Field(
    32,
    Annotated[int, Interval(ge=1, le=10**6)],
    'Examples per worker and step.',
  ),
  'pace': Field(
    'lockstep',
    Literal['lockstep', 'free'],
    '`lockstep`: all workers take every step; `free`: slower workers skip some '
    'steps, on islands, see islands.md.',
  ),
  'accumulate': _changeable(
    1,
    Count,
    'Pieces of a batch that a worker computes one after another, to save '
    'memory; see performance.md.',
  ),
  'ema_decay': Field(
    None,
    Share | None,
    'The decay of an exponential moving average of the parameters, which is '
    'evaluated and saved in their place; see weights.md. Not set: none.',
  ),
  'data.name': Field('digits', str, 'The data set, see partitions.md.'),
  'data.backend': _changeable(
    'auto',
    Literal['auto', 'tf', 'numpy'],
    '`tf`: tf.data pipelines; `numpy`: without TensorFlow, for digits, '
    'fashion_mnist, hyperplane, python_text and stdlib_text; `auto`: `tf` '
    'where it is installed, `numpy` otherwise. Batches are equal, bit for bit.',
  ),
  'data.partition': Field(
    'seldp',
    str,
    '`seldp`: chunks rotate among the workers; `defdp`, `by_label`, '
    '`dirichlet`: each worker keeps its own. See partitions.md.',
  ),
  'data.injection.alpha': Field(
    0.0,
    Probability,
    'The fraction of workers that share a part of their batch with all others '
    'at every step; 0: no injection.',
  ),
  'data.injection.beta': Field(
    0.0, Probability, 'The fraction of the batch that these workers share.'
  ),
  'data.dir': _changeable(
    None,
    str | None,
    "The folder of TFDS's data: absolute, or beginning with `~`, `./` or "
    "`../`. Not set: TFDS's default.",
  ),
  'model.name': Field('convnet', str, 'The model.'),
  'model.dtype': Field(
    'float32', str, 'The dtype of the computation, `float32` or `bfloat16`.'
  ),
  'optimizer.name': Field(
    'sgd',
    str,
    'Any optimizer of optax or optax.contrib that needs only the gradient, and '
    'no random key. Its arguments are fields.',
  ),
  'optimizer.learning_rate': Field(0.1, float, 'The peak of the schedule.'),
  'optimizer.momentum': Field(None, float | None, 'The momentum.'),
  'optimizer.nesterov': Field(None, bool | None, "Whether it is Nesterov's."),
  'optimizer.weight_decay': Field(
    None,
    float | None,
    "The optimizer's weight decay; if it has none, L2 regularization.",
  ),
  'optimizer.decayed': Field(
    'all',
    str,
    'The parameters with weight decay: `all`, or `matrices`, which excludes '
    'biases and norm scales.',
  ),
  'optimizer.clip_norm': Field(
    None, float | None, 'The largest global L2 norm of a gradient.'
  ),
  'schedule.name': Field(
    'constant',
    str,
    'One of `constant`, `cosine`, `polynomial`, `exponential`, `stable`, '
    '`milestones` and `staircase`; see fields.md.',
  ),
  'schedule.warmup_epochs': Field(
    0.0,
    Annotated[float, Interval(ge=0, le=1e6)],
    'Epochs of a linear increase from 0.',
  ),
  'eval.every_epochs': _changeable(
    1.0,
    Epochs,
    'Epochs from one evaluation of the consensus, on the validation split, to '
    'the next. The test split is read once, at the end.',
  ),
  'eval.batch_size': _changeable(
    128,
    Annotated[int, Interval(ge=1, le=2**16)],
    'Examples per worker; affects only memory and speed.',
  ),
  'on_nonfinite': _changeable(
    'stop',
    Literal['stop', 'skip'],
    '`skip`: omit the update of a worker whose gradient is not finite.',
  ),
  'max_skips': _changeable(
    20,
    Count,
    'The most updates of one worker that `skip` omits in a row, before the run '
    'stops.',
  ),
  'virtual_cluster.compute': Field(
    None,
    str | None,
    "The workers' speeds in a simulation, see stragglers.md. Not set: real "
    'time.',
  ),
  'virtual_cluster.step_seconds': Field(
    0.1, Positive, 'Seconds that a gradient takes on a worker at full speed.'
  ),
  'virtual_cluster.bandwidth': Field(
    None, str | None, 'The bandwidth of a link, as `1Gbit`; not set: infinite.'
  ),
  'virtual_cluster.latency': Field(
    '0ms', str, 'The latency of a message, one way.'
  ),
  'virtual_cluster.ahead': Field(
    False,
    bool,
    'Whether workers begin the next step during a vote, as islands do.',
  ),
  'check_replicas_every': _changeable(
    100,
    Index,
    'Synchronizations from one bit-for-bit comparison of the replicas to the '
    'next; 0: never.',
  ),
  'checkpoint.every': _changeable(
    500, Count, 'Steps from one checkpoint to the next.'
  ),
  'checkpoint.keep': _changeable(
    3,
    Count,
    'How many of the newest checkpoints are kept.',
  ),
  'checkpoint.resize': _changeable(
    'mean',
    Literal['mean', 'clone'],
    'The optimizer state when a run resumes with another number of workers: '
    "the mean of the old workers' states, or a copy of one of them.",
  ),
  'checkpoint.resize_batch': _changeable(
    'total',
    Literal['total', 'worker'],
    'The batch size that such a run keeps: the total, or the batch size per '
    'worker. With `worker`, the learning rate is scaled.',
  ),
  'log.every': _changeable(
    1, Count, 'Steps from one line of metrics to the next.'
  ),
  'log.fetch_every': _changeable(
    10, Count, 'Steps from one fetch of metrics to the next.'
  ),
  'log.print_every_seconds': _changeable(
    30.0,
    Positive,
    'The most seconds without a printed line. A terminal shows a progress bar '
    'instead.',
  ),
  'log.to': _changeable(
    ('tensorboard',),
    tuple[str, ...],
    'Any of `tensorboard`, `wandb`, `mlflow`, and custom writers, see '
    'loggers.md. Every run also writes metrics.jsonl.',
  ),
}
"""The fields by name, in the order of the documentation."""


def completed(saved: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a saved config by dotted names, with defaults for missing fields.

  The version that saved it may not have had all fields.
  """
  return {name: field.default for name, field in FIELDS.items()} | flat(saved)


# Fields of constructors that hold a path; the fingerprint has its content.
_PLACES = 'data.idx_dir', 'virtual_cluster.trace'


def may_change(field: str) -> bool:
  """Whether a field, by its dotted name, may change when a run resumes."""
  return field in _PLACES or (field in FIELDS and FIELDS[field].may_change)
