"""The digest that identifies a model's computation in training.

It covers the traced loss, so it distinguishes two models of the same name.
"""

from collections.abc import Mapping
import hashlib
import re
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from selsync_jax.models import tasks


def digest(
  model: nn.Module,
  task: tasks.Task,
  shapes: Mapping[str, Any],
  batch: tasks.Batch,
) -> str:
  """Returns a digest of the traced loss of training and of its constants.

  It is equal in all processes.
  """
  traced = jax.make_jaxpr(tasks.train_loss(model, task))(
    shapes['params'], shapes['model_state'], batch, jax.random.key(0)
  )
  # On a terminal, JAX would print in color.
  text = _without_chance(traced.pretty_print(use_color=False))
  constants = [np.asarray(constant).tobytes() for constant in traced.consts]
  whole = b''.join([text.encode(), *constants])
  return hashlib.sha256(whole).hexdigest()[:16]


def _without_chance(text: str) -> str:
  """Returns the text of a jaxpr without differences between processes.

  These are the memory addresses of functions that the program may still call,
  and the order of a set of names.
  """

  def ordered(found):
    return f'{{{", ".join(sorted(found[1].split(", ")))}}}'

  return re.sub("{('[^{}:]*')}", ordered, re.sub('0x[0-9a-f]+', '', text))
