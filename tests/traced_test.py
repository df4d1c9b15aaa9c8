"""Programs that JAX has traced have the same form in all its releases."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from selsync_jax import traced

TABLE = np.arange(6.0, dtype=np.float32)
X = jnp.linspace(-1.0, 1.0, 6)


@jax.custom_vjp
def passed(x):
  return 2 * x


passed.defvjp(lambda x: (2 * x, None), lambda _, g: (g,))


def nested(x, *, table=TABLE, slope=0.5):
  """Everything that can hold a program: calls, branches, loops, derivatives."""
  x = jax.jit(lambda x: x + table)(passed(x))
  x = lax.cond(x[0] > 0, jnp.sin, lambda x: slope * x, x)
  x, _ = lax.scan(lambda x, y: (jax.nn.relu(x) + y, None), x, table[:3])
  return jax.checkpoint(jnp.tanh)(x), lax.while_loop(
    lambda x: x.sum() < 9.0, lambda x: x + 1.0, x
  )


def structure(fn, *args):
  program = jax.make_jaxpr(fn)(*args)
  reads = *program.constvars, *program.invars
  return traced.structure(reads, program.outvars, program.eqns)


def test_a_program_evaluated_equation_by_equation_has_its_results():
  found = traced.run(jax.make_jaxpr(nested)(X), [X])
  for one, other in zip(found, nested(X), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_programs_traced_apart_are_equal_if_they_compute_the_same():
  one, again = (structure(lambda x: nested(x), X) for _ in range(2))
  assert one == again and hash(one) == hash(again)
  other = structure(lambda x: nested(x, slope=0.25), X)
  assert one != other
  assert one != structure(nested, jnp.zeros(6, jnp.bfloat16))


def test_an_override_reaches_the_equations_of_a_nested_program():
  def doubled(eqn, values):
    if traced.name(eqn) == 'jit':
      return traced.run(eqn.params['jaxpr'], values, doubled)
    return [2 * np.sin(values[0])] if traced.name(eqn) == 'sin' else None

  program = jax.make_jaxpr(jax.jit(lambda x: jnp.sin(x) + 1.0))(X)
  found, *_ = traced.run(program, [X], doubled)
  np.testing.assert_allclose(found, 2 * jnp.sin(X) + 1, rtol=1e-6)


def test_every_program_inside_an_equation_is_found():
  def names(program):
    for eqn in program.eqns:
      yield traced.name(eqn)
      for inner in traced.inside(eqn):
        yield from names(inner)

  found = {*names(jax.make_jaxpr(nested)(X))}
  calls = {'jit', 'cond', 'scan', 'while', 'custom_vjp_call', 'custom_jvp_call'}
  assert found >= calls | {'sin', 'max', 'add', 'tanh', 'lt'}


COLLECTIVES = {
  'psum': lambda x: lax.psum(x, 'workers'),
  'pmax': lambda x: lax.pmax(x, 'workers'),
  'axis_index': lambda x: x + lax.axis_index('workers'),
  'all_gather': lambda x: lax.all_gather(x, 'workers'),
  'all_to_all': lambda x: lax.all_to_all(x.reshape(2, 3), 'workers', 0, 0),
  'reduce_scatter': lambda x: lax.psum_scatter(x, 'workers', tiled=True),
  'ppermute': lambda x: lax.ppermute(x, 'workers', [(0, 1)]),
}


@pytest.mark.parametrize('name', COLLECTIVES)
def test_a_collective_has_a_name_and_the_axis_that_it_is_over(name):
  program = jax.make_jaxpr(COLLECTIVES[name], axis_env=[('workers', 2)])(X)
  over = {traced.name(e) for e in program.eqns if 'workers' in traced.axes(e)}
  assert over == {name}


@pytest.mark.parametrize('mapped', [lambda f: f, jax.vmap])
def test_a_value_is_typed_as_equal_and_nothing_is_sent(mapped):
  types = []

  def block(x):
    types.append(traced.varying(x))
    equal = mapped(traced.typed_as_equal)(x)
    types.append(traced.varying(equal))
    return equal

  mesh = jax.sharding.Mesh(jax.devices()[:2], ('workers',))
  same = jax.shard_map(
    block, mesh=mesh, in_specs=jax.P('workers'), out_specs=jax.P()
  )
  ones = jnp.ones(6)
  compiled = jax.jit(same).lower(ones).compile()
  np.testing.assert_array_equal(compiled(ones), ones[:3])
  assert types == [{'workers'}, frozenset()]
  assert 'all-' not in compiled.as_text()
  assert traced.varying(1.0) == frozenset()
