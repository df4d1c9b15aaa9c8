"""Declarations of parts, and the declarations that survive a change."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.methods import PARTS


@pytest.mark.parametrize(
  'part',
  [
    ss.any_of(ss.selsync(0.3, vote_every=4), ss.every(2)),
    ss.at_sync(ss.top_k(0.5)),
  ],
)
def test_declarations_of_a_transformation_survive_a_replacement(part):
  def update(updates, state, params=None, **extra_args):
    return part.update(updates, state, params, **extra_args)

  new = part._replace(update=update)
  assert type(new) is type(part)
  assert new.update is update and new.init is part.init
  assert new.traits == part.traits != type(part).record()
  assert new.metrics is part.metrics and new.resize is part.resize
  # The recipe makes the part without the replacement.
  assert new.recipe is None and str(new).endswith('(...)')
  assert part.recipe is not None


def test_every_part_is_called_in_a_test_of_this_folder():
  """`tests/conformance_test.py` tests only properties common to all parts."""
  folder = pathlib.Path(__file__).parent
  text = ''.join(path.read_text() for path in folder.glob('*_test.py'))
  for kind, parts in PARTS.items():
    for part in parts.values():
      called = re.search(rf'(?<!np\.)\b{part.__name__}\(', text) is not None
      assert called, f'no test calls {kind} {part.__name__}'


def test_a_replaced_trigger_stands_in_a_chain_and_decides():
  trigger = ss.every(2)
  tx = optax.chain(trigger._replace(update=trigger.update), optax.sgd(1.0))
  grads, synced = jnp.ones(2), []
  state = tx.init(grads)
  for _ in range(4):
    _, state = tx.update(grads, state, grads)
    synced.append(bool(state[0].sync))
  assert synced == [False, True, False, True]


def test_a_trait_that_a_part_does_not_have_is_refused():
  with pytest.raises(TypeError, match='perod'):
    ss.Trigger(ss.every(2).init, ss.every(2).update, perod=3)


@pytest.mark.parametrize(
  'part', [ss.mean(), ss.wires.int8(), ss.optimizer_state.local()]
)
def test_a_part_is_frozen(part):
  with pytest.raises(AttributeError):
    part.sends = None


def test_a_trigger_of_triggers_reports_what_they_report():
  budget = ss.budgeted(ss.selsync(0.3), lssr=0.9)
  outer = ss.min_interval(3, trigger=ss.any_of(ss.every(20), budget))
  state = outer.init(jnp.ones(2))
  assert outer.metrics(state).keys() == {'threshold'}
  assert outer.metrics(state)['threshold'] == 0  # Nothing is measured yet.
  assert not ss.every(2).metrics(ss.every(2).init(jnp.ones(2)))


def test_a_budget_on_another_quantity_is_not_the_threshold_of_the_change():
  budget = ss.budgeted(ss.fda(1.0), lssr=0.9)
  state = budget.init(jnp.ones(2))
  assert budget.metrics(state).keys() == {'budget_threshold'}


def test_fragments_report_what_their_averager_reports():
  inner = ss.Averager(
    lambda tree: jnp.int32(0),
    lambda tree, state: (tree, state + 1),
    metrics=lambda state: {'rounds': state},
  )
  averager, tree = ss.fragments(2, averager=inner), jnp.arange(4.0)
  state = averager.init(tree)
  for rounds in (1, 1, 2):
    tree, state = averager.apply(tree, state)
    assert averager.metrics(state)['rounds'] == rounds


def test_an_averager_hands_its_wires_error_on_to_other_workers():
  averager = ss.outer(optax.sgd(1.0), averager=ss.mean(wire=ss.wires.int8()))
  states = [averager.init({'w': jnp.full(3, float(i))}) for i in range(4)]
  saved = jax.tree.map(lambda *leaves: np.stack(leaves), *states)
  error = [np.arange(12.0, dtype=np.float32).reshape(4, 3)]
  saved = saved._replace(averager=saved.averager._replace(error=error))
  fresh = jax.tree.map(lambda leaf: leaf[:2] * 0, saved)
  new = averager.resize(saved, fresh, range(2), 7)
  np.testing.assert_array_equal(new.averager.error[0], [[4.5, 5.5, 6.5]] * 2)
  np.testing.assert_array_equal(new.consensus['w'], np.zeros((2, 3)))


def test_the_package_offers_every_part():
  places = {
    'wire': ss.wires,
    'optimizer_state': ss.optimizer_state,
    'reducer': ss.reducers,
  }
  for kind, table in PARTS.items():
    for constructor in table.values():
      name = constructor.__name__
      place = places.get(kind, ss)
      own = getattr(place, name, None) or getattr(ss, name)
      assert own is constructor, f'{kind} {name}'
