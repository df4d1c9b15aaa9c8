"""Config files whose custom code misbehaves, wherever a user's code runs.

A file defines a data set, a transform, an augmentation, a model, a task, a
method and a writer. One of them does something wrong, starting with one of its
calls. With the environment variable `HARMLESS` the same file does nothing
wrong. `REACHED` names a file that is created when something wrong is done.
"""

import pathlib
import random
from typing import NamedTuple

_FILE = """import collections
import os
import pathlib
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import selsync_jax as ss
from selsync_jax import data
from selsync_jax.configs import base

CALLS = collections.Counter()


def due(place):
  CALLS[place] += 1
  if place != {place!r} or CALLS[place] < {call} or 'HARMLESS' in os.environ:
    return False
  if 'REACHED' in os.environ:
    pathlib.Path(os.environ['REACHED']).touch()
  return True


def fail(x):
  if due('callback'):
    {act}
  return x


@ss.register_dataset
def blobs():
  rng = np.random.default_rng(0)

  def split(count):
    label = rng.integers(0, 2, count)
    image = rng.normal(label[:, None], size=(count, 3)).astype(np.float32)
    result = {{'image': image, 'label': label}}
    if due('dataset'):
      {act}
    return result

  def transform(batch):
    result = dict(batch)
    if due('transform'):
      {act}
    return result

  def augment(batch, key):
    result = dict(batch)
    if due('augment'):
      {act}
    return result

  splits = dict(train=split(64), validation=split(16), test=split(16))
  return data.from_arrays(
    **splits,
    task='blame',
    num_classes=2,
    transform=transform,
    augment=augment,
  )


@ss.register_model
class Tiny(nn.Module):
  outputs: int

  @nn.compact
  def __call__(self, x, *, train):
    result = nn.Dense(self.outputs)(x)
    if {place!r} == 'callback':
      jax.debug.callback(fail, x)
    if due('model') or (not train and due('evaluated model')):
      {act}
    return result


def derived(means):
  result = {{'twice': 2 * means['loss']}}
  if due('derived'):
    {act}
  return result


@ss.register_task('image', derived)
def blame(outputs, batch):
  loss = jnp.square(outputs[:, 0] - batch['label'])
  result = {{'loss': loss, 'small': loss < 1}}
  if due('task'):
    {act}
  return result


@ss.register_method
def mine(context):
  def init(params):
    result = inner.init(params)
    if due('trigger init'):
      {act}
    return result

  def update(updates, state, params=None, **extra):
    result = inner.update(updates, state, params, **extra)
    if due('trigger'):
      {act}
    return result

  inner = ss.every(3)
  result = ss.Strategy(ss.Trigger(init, update, period=3), ss.mean())
  if due('method'):
    {act}
  return result


@ss.register_writer
class noisy:
  def __init__(self, workdir, step, config):
    if due('writer'):
      {act}

  def write(self, row):
    if due('write'):
      {act}

  def __enter__(self):
    if due('opened writer'):
      {act}
    return self

  def __exit__(self, *exc):
    if due('closed writer'):
      {act}


def get_config(method='mine'):
  config = base.get_config(method)
  config.workers, config.batch_size, config.steps = 2, 4, {steps}
  config.epochs, config.mapper = None, 'vmap'
  config.schedule.warmup_epochs = 0.0
  config.eval.every_epochs = 0.5
  config.checkpoint.every = 5
  config.log.to = ('noisy',)
  config.data.update(name='blobs')
  config.model.update(name='Tiny')
  if due('get_config'):
    {act}
  return config
"""

# Like a file name that is not UTF-8.
_NOT_UTF8 = "raise ValueError('\\udcff')"
RAISES = (
  _NOT_UTF8,
  *("raise ValueError('boom')", "raise KeyError('boom')", '1 / 0', '[][1]'),
  *("raise OSError(28, 'boom')", "assert False, 'boom'", 'undefined', '{}.x'),
  *("raise MemoryError('boom')", "raise StopIteration('boom')", 'sys.exit()'),
  *("sys.exit('boom')", 'sys.exit(0)', 'sys.exit(3)', "np.zeros(3)['boom']"),
  *(
    "raise Exception('one\\ntwo')",
    'raise GeneratorExit',
    'np.ones((2, 3)) @ 1',
  ),
  *("raise RuntimeError('é' * 2000)", 'raise Exception', 'fail.x.y'),
  *("raise UnicodeError('boom')", '(lambda f: f(f))(lambda f: f(f))'),
)
_ANY = ('return None', 'return 3', "return 'text'", 'return {}', 'return []')
_BATCHES = (
  "result['image'] = result['image'][:1]",
  "result['image'] = result['image'][..., 0]",
  "result['image'] = np.array(['text'] * len(result['image']))",
  "result['image'] = result['image'].astype(object)",
  "result['image'] *= 2",
  "result['image'][:] = np.nan",
  "result['label'] = result['label'] * 0 - 1",
  "result['label'] = result['label'] + 0.5",
  "del result['label']",
  "result['mask'] = result['label'] > 5",
  "result['a/b'] = result['label']",
  "result['words'] = np.array(['text'] * len(result['label']))",
)
_SCORES = (
  'return result[..., :1]',
  'return result.astype(int)',
  'return result > 0',
  'return result + 1j',
  'return result * jnp.nan',
  'return jnp.concatenate([result, result], -1)',
  'return jnp.concatenate([result, result], 0)',
  'return result, result',
  "self.param('whole', lambda key: jnp.arange(3))",
  "self.param('flags', lambda key: jnp.ones(3, bool))",
  "self.param('none', lambda key: jnp.ones((0, 3)))",
  "self.param('a/b', nn.initializers.ones, (3,))",
  "self.make_rng('another')",
  "self.variable('grown', 'x', lambda: jnp.ones(CALLS['model']))",
  "self.variable('packed', 'x', lambda: jnp.ones(3, 'int4'))",
  "self.variable('packed', 'x', lambda: jax.random.key(0))",
  'nn.Dense(2)(x.astype(str))',
)
_METRICS = (
  "return {'loss': jnp.mean(loss)}",
  "return {'accuracy': loss}",
  "return result | {'step': loss}",
  "return result | {'epoch': loss}",
  "return result | {'a/b': loss}",
  "return result | {'../x': loss}",
  "return result | {'$\\\\frac$': loss}",
  "return result | {'': loss}",
  'return result | {3: loss}',
  "return result | {'count': loss}",
  "return result | {'vector': outputs}",
  "return result | {'text': 'text'}",
  "return result | {'loss': loss * 1j}",
)
_DERIVED = (
  "return {'loss': means['loss']}",
  "return {'seconds': means['loss']}",
  "return {'vector': jnp.ones(3)}",
  "return {'twice': 'text'}",
)
_STATES = ('return result, result', 'return (None, None)', 'return ({}, {})')
WRONG = {
  'dataset': (*_ANY, *_BATCHES),
  'transform': (*_ANY, *_BATCHES),
  'augment': (*_ANY, *_BATCHES),
  'model': (*_ANY, *_SCORES),
  'evaluated model': (*_ANY, *_SCORES),
  'task': (*_ANY, *_METRICS),
  'derived': (*_ANY, *_DERIVED),
  'trigger init': _ANY,
  'trigger': (*_ANY, *_STATES),
  'method': _ANY,
  'get_config': (*_ANY, 'config.steps = -1', 'config.data.name = None'),
  'opened writer': _ANY,
}
"""Wrong results by place; raising is wrong everywhere."""

STEPS = 16
PLACES = (*WRONG, 'callback', 'writer', 'write', 'closed writer')
CRASHES = {('callback', _NOT_UTF8)}
"""Code that ends jaxlib 0.10.2 with SIGSEGV, also in six lines of JAX alone."""


class Case(NamedTuple):
  """A way to misbehave.

  Attributes:
    place: the misbehaving place, one of `PLACES`.
    act: the statement that is wrong.
    call: number of the first call that misbehaves.
  """

  place: str
  act: str
  call: int

  @property
  def raises(self) -> bool:
    """Whether the act is an error even if its result is ignored."""
    return self.act in RAISES

  @property
  def is_forgiven(self) -> bool:
    """Whether the run continues after an error, with a line about it."""
    return self.place in ('write', 'closed writer')

  def write(self, file: pathlib.Path) -> None:
    """Writes the config file of this case."""
    file.write_text(_FILE.format(**self._asdict(), steps=STEPS))


def draw(rng: random.Random) -> Case:
  """Draws a case: half of them raise, half of them return something wrong."""
  place = rng.choice(PLACES)
  acts = RAISES if rng.random() < 0.5 else WRONG.get(place, RAISES)
  acts = [act for act in acts if (place, act) not in CRASHES]
  return Case(place, rng.choice(acts), rng.choice([1, 1, 2, 3, 10]))
