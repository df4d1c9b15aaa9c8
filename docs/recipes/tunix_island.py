"""A trainer of Tunix 0.1.7 on islands: a hook that averages its parameters.

  selsync meet --islands=2 --minimum=1 --host=10.0.0.1  # Prints the invitation.
  SELSYNC_INVITATION=... python tunix_island.py maui  # On each, with its name.

Tunix shows no gradients to its hooks, so the transformation `keep` stores them
in the optimizer's state, which takes memory. Without it, call
`after_step(params)`, with a trigger that measures no gradients, such as
`ss.every`. With LoRA, only the adapters are averaged.

If an island ends, repeat its command: it continues from the others' state.
"""

import os
import sys
from typing import Any, NamedTuple

from flax import nnx, serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tunix.sft import hooks, peft_trainer

import selsync_jax as ss


class Kept(NamedTuple):
  """A state that is the gradients of the last step."""

  grads: Any


keep = optax.GradientTransformation(
  lambda params: Kept(optax.tree.zeros_like(params)),
  lambda grads, state, params=None: (grads, Kept(grads)),
)


class Average(hooks.TrainingHooks):
  """Averages the parameters of a `PeftTrainer` with other islands."""

  def __init__(self, island):
    self.island = island

  def on_train_step_end(self, trainer, train_step, train_loss):
    """Votes, and replaces the parameters if that is due."""
    if self.island:  # Tunix calls this from the second update on.
      grads = optax.tree.get(trainer.optimizer.opt_state, 'grads')
      params = nnx.state(trainer.model, trainer.optimizer.wrt)
      nnx.update(trainer.model, self.island.after_step(params, grads))

  def on_train_end(self, trainer):
    """Applies an average in flight, and leaves the other islands."""
    params = nnx.state(trainer.model, trainer.optimizer.wrt)
    nnx.update(trainer.model, self.island.leave(params))
    self.island = None

  def _ignore(self, *_): ...

  on_train_start = on_train_step_start = _ignore
  on_eval_step_start = on_eval_step_end = _ignore


def loss(model, x):
  """Returns the mean squared error of a linear model."""
  return jnp.mean((model(x)[:, 0] - x.sum(-1)) ** 2)


def save():
  """Returns what another island needs besides the parameters."""
  state = nnx.state(trainer.optimizer)
  return serialization.to_bytes(jax.tree.leaves(state))


def load(params, content):
  """Continues from another island's parameters, and the bytes it has saved."""
  leaves, structure = jax.tree.flatten(nnx.state(trainer.optimizer))
  state = structure.unflatten(serialization.from_bytes(leaves, content))
  nnx.update(trainer.optimizer, state)
  nnx.update(model, params)


model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))  # The same seed everywhere.
trainer = peft_trainer.PeftTrainer(
  model,
  optax.chain(keep, optax.adam(0.1)),
  peft_trainer.TrainingConfig(eval_every_n_steps=1000, max_steps=100),
)
trainer.with_loss_fn(loss).with_gen_model_input_fn(lambda x: {'x': x})
with ss.Island.join(
  os.environ['SELSYNC_INVITATION'],
  sys.argv[1],
  nnx.state(model, nnx.Param),
  ss.Strategy(ss.selsync(delta=0.3), ss.mean()),
  save=save,
  load=load,
) as island:
  trainer.with_training_hooks(Average(island))
  data = np.random.default_rng(island.index).normal(size=(100, 8, 3))
  trainer.train(data[island.step :])  # All of it, unless it has joined late.
print(model.kernel[...].round(1))
