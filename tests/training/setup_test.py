"""A config's mistakes, each found before any device work and named."""

import ast

import pytest

from selsync_jax import methods
from selsync_jax.config import ConfigError
from selsync_jax.configs import digits
from selsync_jax.training.settings import check
from selsync_jax.training.setup import create_setup

# By field and value: the message after `config.FIELD=VALUE: `, or all of it.
BAD_FIELDS = {
  'sync.delta=-0.5': 'must be at least 0',
  'sync.smoothing=0.0': 'must be in (0, 1]',
  'sync.smoothing=2.0': 'must be in (0, 1]',
  'sync.quorum=1.5': 'must be in (0, 1]',
  'sync.aggregate=both': 'must be params or grads',
  'sync.method=bsp': (
    "config.sync.aggregate='params': method bsp has no aggregate; "
    '--config=FILE:bsp picks it with its own fields'
  ),
  'sync.method=ssp': f'is not one of {", ".join(methods.METHODS)}',
  'batch_size=315': (
    'config.data.partition: a batch of 315 is larger than a chunk: the '
    'smallest of 4 has 314 examples'
  ),
  'workers=1258': (
    'config.data.partition: more workers (1258) than examples (1257)'
  ),
  'workers=-1': 'must be in [1, 4096]',
  'mapper=smap': 'must be auto or pmap or vmap or map or mesh',
  'mesh.data=0': 'must be in [1, 4096]',
  'mesh.fsdp=2': (
    'mapper pmap has one device per worker; --config.mapper=mesh can have more'
  ),
  'checkpoint.resize=sum': 'must be mean or clone',
  'checkpoint.resize_batch=each': 'must be total or worker',
  'seed=-1': 'must be in [0, 2147483648)',
  'epochs=0.0': 'must be in (0, 1e+06]',
  'steps=0': 'must be in [1, 100000000]',
  'epochs=None': 'config.steps=None, config.epochs=None: set one of them',
  'batch_size=0': 'must be in [1, 1000000]',
  'accumulate=5': (
    'config.batch_size=32: must be a multiple of config.accumulate=5 times '
    'the devices per worker, 1 (mesh.data times mesh.fsdp)'
  ),
  'data.name=mnist': (
    "config.data.name: 'mnist' is not one of digits, fashion_mnist, "
    'hyperplane, python_text, stdlib_text, cifar10, cifar100, imagenet2012, '
    'wikitext103'
  ),
  'data.bptt=8': 'digits has no bptt; it has image_size; None unsets it',
  'data.labels_per_worker=1': 'seldp has no labels_per_worker; None unsets it',
  'data.injection.alpha=-0.1': 'must be in [0, 1]',
  'data.injection.alpha=0.5': (
    'config.data.injection: alpha=0.5, beta=0.0 are too small: no example of '
    'a batch of 32 would be shared'
  ),
  'data.partition=iid': (
    "config.data.partition: 'iid' is not one of defdp, seldp, by_label, "
    'dirichlet'
  ),
  'model.name=lenet': (
    "config.model.name: 'lenet' is not one of convnet, resnet, vgg11, "
    'alexnet, transformer, decoder, linear'
  ),
  'optimizer.name=adamz': (
    "config.optimizer.name: 'adamz' is not an optimizer of optax"
  ),
  'optimizer.name=adam': (
    'config.optimizer.momentum=0.9: adam has no momentum; it has decayed, '
    'clip_norm, weight_decay, groups, learning_rate, b1, b2, eps, eps_root, '
    'mu_dtype, nesterov; None unsets it'
  ),
  'schedule.name=linear': (
    "config.schedule.name: 'linear' is not one of constant, cosine, "
    'polynomial, exponential, stable, milestones, staircase'
  ),
  'schedule.warmup_epochs=-1.0': 'must be in [0, 1e+06]',
  'virtual_cluster.step_seconds=0.0': 'must be above 0',
  'virtual_cluster.step_seconds=None': 'must be a finite number',
  'virtual_cluster.latency=None': 'must be a name',
}


@pytest.mark.parametrize('given', BAD_FIELDS)
def test_a_value_that_breaks_its_rule_is_named_with_it(given, data_dir):
  field, _, text = given.partition('=')
  try:
    value = ast.literal_eval(text)
  except ValueError:
    value = text
  config = digits.get_config()
  with config.ignore_type():
    config.update_from_flattened_dict({field: value, 'data.dir': data_dir})
  with pytest.raises(ConfigError) as error:
    create_setup(check(config))
  line = BAD_FIELDS[given]
  if not line.startswith('config.'):
    line = f'config.{field}={value!r}: {line}'
  assert str(error.value) == line
