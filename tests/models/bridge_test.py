"""The package's view of flax nnx modules, next to linen modules."""

from flax import nnx, traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from selsync_jax.models.bridge import as_linen


class Calls(nnx.Variable):
  """A kind of variable of the user's own."""


class Net(nnx.Module):
  """The possible children of a module."""

  def __init__(self, outputs, *, width=4, rngs):
    self.layers = nnx.List(
      nnx.Linear(width, width, rngs=rngs) for _ in range(11)
    )
    self.tied = self.layers[10]  # Shares its parameters.
    self.norm = nnx.BatchNorm(width, rngs=rngs)
    self.calls = Calls(jnp.zeros((), jnp.int32))
    self.offset = jnp.arange(width, dtype=jnp.float32)[None]
    self.rngs = rngs
    self.out = nnx.Linear(width, outputs, rngs=rngs)

  def __call__(self, x):
    self.calls[...] += 1
    for layer in (*self.layers, self.tied):
      x = x + layer(x + self.offset)
    self.before = nnx.Intermediate(x)
    return self.out(self.norm(x))


X = jnp.asarray(np.random.default_rng(0).normal(size=(8, 4)), jnp.float32)


def test_variables_have_the_names_of_their_paths_and_types():
  model = as_linen(Net)(3)
  variables = jax.jit(lambda: model.init(jax.random.key(0), X, train=False))()
  names = set(traverse_util.flatten_dict(variables, sep='/'))
  assert names == {
    *(f'params/layers/{i}/{k}' for i in range(11) for k in ('kernel', 'bias')),
    *(f'params/{name}' for name in ('norm/scale', 'norm/bias')),
    *(f'params/{name}' for name in ('out/kernel', 'out/bias')),
    *(f'batch_stats/norm/{name}' for name in ('mean', 'var')),
    'Calls/calls',
  }
  assert variables['Calls']['calls'] == 0
  mutable = ['batch_stats', 'Calls']
  scores, state = model.apply(variables, X, train=True, mutable=mutable)
  assert scores.shape == (8, 3) and state['Calls']['calls'] == 1
  assert (state['batch_stats']['norm']['mean'] != 0).all()
  assert state.keys() == set(mutable)


def test_to_nnx_returns_the_module_itself():
  model = as_linen(Net)(3)
  variables = model.init(jax.random.key(0), X, train=False)
  module = model.to_nnx(variables)
  assert isinstance(module, Net)
  module.eval()
  np.testing.assert_array_equal(
    module(X), model.apply(variables, X, train=False)
  )


def test_each_layer_draws_another_mask_from_the_key_alone():
  class Masks(nnx.Module):
    def __init__(self, outputs, *, rngs):
      self.drops = nnx.List(nnx.Dropout(0.5, rngs=rngs) for _ in range(outputs))

    def __call__(self, x):
      return jnp.stack([drop(x) for drop in (*self.drops, *self.drops)])

  model = as_linen(Masks)(2)

  def masks(seed):
    rngs = {'dropout': jax.random.key(seed)}
    return np.asarray(model.apply({}, jnp.ones(99), train=True, rngs=rngs))

  first = masks(0)
  np.testing.assert_array_equal(first, masks(0))
  every = np.concatenate([first, masks(1)])
  assert len(np.unique(every, axis=0)) == 8
  assert (model.apply({}, jnp.ones(9), train=False) == 1).all()
