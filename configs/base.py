"""The default config: every field with its default, unit and effect.

The fields of `sync` are declared by the constructors in `selsync_jax/methods/`
and, for asynchronous methods, in `selsync_jax/simulate/methods/`.
A workload's config starts from this one and changes some fields. `config.sync`
has only the fields of one method, which `--config=configs/digits.py:bsp`
selects.
"""

from collections.abc import Mapping
import inspect
import types
import typing
from typing import Any

from ml_collections import config_dict

from selsync_jax import methods
from selsync_jax.config import ConfigError
from selsync_jax.config import lookup

NO_OVERRIDES: Mapping[str, Any] = types.MappingProxyType({})
PAPER: Mapping[str, Any] = types.MappingProxyType({'selsync': {'delta': 0.3}})
"""The delta of the SelSync paper, for its own workloads."""


def _sync(method: str, overrides: Mapping[str, Mapping[str, Any]]) -> dict:
  """The fields of one method: its constructor's defaults, then `overrides`.

  The constructor's docstring describes each field.
  """
  try:
    parameters = _parameters(method)
  except ValueError as error:
    raise ConfigError(f'config.sync.method={error}') from error
  fields = {name: _default(p) for name, p in parameters.items()}
  own = {'method': method, **fields, **overrides.get(method, {})}
  if method not in methods.METHODS:
    return own  # An asynchronous method has no such parts.
  return {
    **own,
    # Parts that replace the method's own, by name and fields, or fields that
    # change its own; see docs/methods.md. Empty: as the method has it.
    **{kind: {} for kind in methods.PARTS},
    # 'recompute': batch statistics stay local, and each evaluation estimates
    # those of the consensus from one pass over the training data.
    'model_state': 'mean',
  }


def _parameters(method: str) -> Mapping[str, inspect.Parameter]:
  if method in methods.METHODS:
    return methods.parameters(method)
  # It imports flax and more, which those above do not need.
  from selsync_jax.simulate import methods as asynchronous

  lookup(methods.METHODS | asynchronous.METHODS, method)
  return asynchronous.parameters(method)


def _default(parameter: inspect.Parameter) -> Any:
  """A default that a flag can change; `None` needs the type it stands for."""
  if parameter.default is None and typing.get_args(parameter.annotation):
    kind, *_ = typing.get_args(parameter.annotation)  # Of `float | None`, say.
    return config_dict.placeholder(kind)
  if parameter.default in (None, parameter.empty):
    raise ConfigError(
      f'config.sync.{parameter.name}: needs a default in its method, and one '
      'of None an annotation such as float | None'
    )
  return parameter.default


def split(argument: str) -> tuple[str, bool]:
  """Parses the argument of a workload's config file, `METHOD[,smoke]`.

  Returns:
    The method, and whether to use the smoke variant: a workload small enough
    for a laptop, on data that every machine has.
  """
  method, *variant = argument.split(',')
  if variant not in ([], ['smoke']):
    raise ConfigError(
      f'--config=FILE:{argument}: only smoke may follow the method'
    )
  return method, bool(variant)


def shrink(config: config_dict.ConfigDict) -> None:
  """Sets four workers on a CPU."""
  config.workers = 4
  config.model.dtype = 'float32'


def get_config(
  method: str, overrides: Mapping[str, Mapping[str, Any]] = NO_OVERRIDES
) -> config_dict.ConfigDict:
  """Returns the default config with the fields of one method.

  Args:
    method: a name in `selsync_jax.methods.METHODS`.
    overrides: by method, a workload's values for fields of that method.
  """
  return config_dict.ConfigDict(
    dict(
      workers=4,  # N. With pmap, one accelerator each.
      mapper='pmap',  # 'vmap': all workers on one device; 'map': there, in
      # turn; 'auto': what is fastest, see docs/performance.md. 'mesh': several
      # devices in each worker, see docs/mesh.md.
      device='auto',  # What JAX finds. 'gpu', 'tpu', 'cpu': that or nothing.
      mesh=dict(
        data=1,  # Devices of a worker that hold the same parameters,
        fsdp=1,  # times devices that hold a part of them each.
      ),
      seed=0,  # Of initial weights, shuffling, dropout and sampling.
      epochs=config_dict.placeholder(float),  # Length of the run. In an
      # epoch, all workers together read as many examples as the data set has.
      steps=config_dict.placeholder(int),  # Length in steps; overrides epochs.
      batch_size=32,  # Examples per worker and step.
      sync=_sync(method, overrides),
      data=dict(
        name='digits',  # Or another data set of docs/partitions.md.
        backend='auto',  # 'tf': tf.data pipelines; 'numpy': without TensorFlow,
        # for digits, hyperplane and stdlib_text. 'auto': tf where it is
        # installed, numpy otherwise. The batches are the same, bit for bit.
        # 'seldp': chunks rotate among the workers. 'defdp', 'by_label',
        # 'dirichlet': each worker keeps its own. See docs/partitions.md.
        partition='seldp',
        labels_per_worker=config_dict.placeholder(int),  # Of 'by_label'.
        dirichlet_alpha=config_dict.placeholder(float),  # Of 'dirichlet'.
        # At every step, a fraction alpha of the workers shares a fraction beta
        # of its batch with all others. 0 and 0: no injection.
        injection=dict(alpha=0.0, beta=0.0),
        image_size=config_dict.placeholder(int),  # Pixels; None: no resizing.
        channels=config_dict.placeholder(int),  # Of digits: 1, or 3 equal ones.
        dimensions=config_dict.placeholder(int),  # Of hyperplane: features.
        bptt=config_dict.placeholder(int),  # Of text: tokens per example.
        window=config_dict.placeholder(int),  # Of imagenet2012: examples that
        # are shuffled together; about 100 kB of memory each, per worker.
        dir=config_dict.placeholder(str),  # Of TFDS's data: absolute, or
        # beginning with ~, ./ or ../. None: the default of TFDS.
      ),
      model=dict(
        name='convnet',  # A workload adds the model's fields.
        dtype='float32',  # Of the computation; or 'bfloat16'.
      ),
      optimizer=dict(
        name='sgd',  # Any optimizer of optax; a workload adds its arguments.
        learning_rate=0.1,  # The peak of the schedule.
        momentum=config_dict.placeholder(float),
        nesterov=config_dict.placeholder(bool),
        weight_decay=config_dict.placeholder(float),
        decayed='all',  # Or 'matrices': no decay of biases and norm scales.
        clip_norm=config_dict.placeholder(float),  # Maximum global L2 norm.
      ),
      schedule=dict(
        name='constant',  # Or 'cosine', which decays to 0 at the end;
        # 'milestones' and 'staircase', repeatedly multiplied by `factor`.
        warmup_epochs=0.0,  # Linear increase from 0.
        milestones=config_dict.placeholder(tuple),  # Epochs.
        period=config_dict.placeholder(int),  # Of 'staircase', in steps.
        factor=config_dict.placeholder(float),
      ),
      eval=dict(
        every_epochs=1.0,  # From one evaluation of the consensus, on the
        # validation split, to the next. The test split: once, at the end.
        batch_size=128,  # Examples per worker; affects only memory and speed.
      ),
      on_nonfinite='stop',  # Or 'skip': omit that worker's update.
      max_skips=20,  # Of 'skip': updates of one worker omitted in a row before
      # the run stops, because its parameters are not finite, for example.
      cluster=dict(  # Of `simulate`; docs/stragglers.md explains the fields.
        # Who is how fast: 'constant', 'factors', 'lognormal', 'delays',
        # 'skewed', 'outages', 'trace'. None: real time, as under `train`.
        compute=config_dict.placeholder(str),
        step_seconds=0.1,  # Of a gradient, on a worker that nothing slows down.
        factors=config_dict.placeholder(tuple),  # By worker; 2: half speed.
        sigma=config_dict.placeholder(float),  # Of 'lognormal'.
        late=config_dict.placeholder(int),  # Of 'delays': workers at a step.
        delay=config_dict.placeholder(float),  # Of 'delays', in seconds.
        low=config_dict.placeholder(float),  # Of 'skewed', in seconds.
        high=config_dict.placeholder(float),  # Of 'skewed', in seconds.
        rate=config_dict.placeholder(float),  # Of 'outages', per step.
        length=config_dict.placeholder(float),  # Of 'outages', in seconds.
        trace=config_dict.placeholder(str),  # A CSV file of seconds.
        bandwidth=config_dict.placeholder(str),  # '1Gbit'; None: infinite.
        latency='0ms',  # Of a message, one way.
      ),
      check_replicas=100,  # Synchronizations from one bit-for-bit comparison
      # of the replicas to the next; 0: never.
      checkpoint=dict(
        every=500,  # Steps.
        keep=3,  # Number of newest checkpoints; the best one is also kept.
        # When a run resumes with another number of workers:
        resize='mean',  # Optimizer state: the mean of the old workers; or
        # 'clone': a copy of one old worker's.
        resize_batch='total',  # Keeps the total batch size; or 'worker': keeps
        # the batch size per worker and scales the learning rate.
      ),
      log=dict(
        every=1,  # Steps from one line of metrics to the next.
        fetch_every=10,  # Steps from one fetch of metrics to the next.
        seconds=30.0,  # Without a printed line until one is due. A terminal
        # has a bar instead.
        to=('tensorboard',),  # And 'csv', 'wandb', 'mlflow', or a writer of
        # your own; see docs/loggers.md. Every run has metrics.jsonl.
      ),
    )
  )
