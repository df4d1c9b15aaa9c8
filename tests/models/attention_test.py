"""Attention alone; `reference_test` compares it with PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np

from selsync_jax import models
from selsync_jax.models import attention
from tests.support.random_weights import random_variables, UNOPTIMIZED


def test_rotary_products_depend_only_on_the_distance():
  query, key = jax.random.normal(jax.random.key(0), (2, 8))
  # The same query and the same key at every position.
  queries, keys = (
    attention.apply_rotary(jnp.broadcast_to(v, (1, 9, 1, 8)))[0, :, 0]
    for v in (query, key)
  )
  products = np.asarray(queries @ keys.T)
  for distance in range(-8, 9):
    np.testing.assert_allclose(
      np.diag(products, distance), np.diag(products, distance)[0], atol=1e-5
    )
  assert len(np.unique(products[0].round(4))) == 9
  np.testing.assert_allclose(
    np.linalg.norm(queries, axis=-1), np.linalg.norm(query), rtol=1e-6
  )


def test_the_fused_kernel_is_asked_for_the_same(monkeypatch):
  # Without a GPU there is only XLA's implementation of the same call.
  of_xla, asked = jax.nn.dot_product_attention, []

  def fused(*qkv, implementation, **how):
    asked.append(implementation)
    return of_xla(*qkv, implementation='xla', **how)

  model = models.create_model(
    *('decoder', 20),
    **dict(num_layers=1, embed_dim=24, num_heads=3, mlp_dim=8, dropout=0.0),
  )
  tokens = jnp.arange(14, dtype=jnp.int32).reshape(2, 7)
  variables = random_variables(model, tokens)
  plain = model.apply(variables, tokens, train=False)
  monkeypatch.setattr(jax.nn, 'dot_product_attention', fused)
  monkeypatch.setattr(attention, '_is_fused', lambda query: True)
  same = model.apply(variables, tokens, train=False)
  assert asked == ['cudnn']
  np.testing.assert_allclose(same, plain, atol=1e-5)
  never = model.clone(attention='xla')
  np.testing.assert_array_equal(
    never.apply(variables, tokens, train=False), plain
  )
  assert len(asked) == 1


def test_activations_that_are_computed_again_change_no_gradient():
  kept = models.create_model(
    *('decoder', 20),
    **dict(num_layers=1, embed_dim=16, num_heads=2, mlp_dim=24, dropout=0.5),
  )
  tokens = jnp.arange(12, dtype=jnp.int32)[None]
  variables = random_variables(kept, tokens)

  def gradient(model):
    def loss(variables):
      rngs = {'dropout': jax.random.key(1)}
      scores = model.apply(variables, tokens, train=True, rngs=rngs)
      return jnp.square(scores).mean()

    return jax.jit(jax.grad(loss), compiler_options=UNOPTIMIZED)

  once, again = gradient(kept), gradient(kept.clone(remat=True))
  jax.tree.map(
    lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6),
    again(variables),
    once(variables),
  )
  flops, fewer = (
    step.lower(variables).cost_analysis()['flops'] for step in (again, once)
  )
  assert flops > 1.2 * fewer  # One forward pass more.
