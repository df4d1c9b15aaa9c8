"""A digest that identifies what a model computes in training.

It is of the traced loss, so it tells two models of one name apart.
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

  It is equal in all processes, on a terminal too, where JAX colors what it
  prints.
  """
  traced = jax.make_jaxpr(tasks.train_loss(model, task))(
    shapes['params'], shapes['model_state'], batch, jax.random.key(0)
  )
  text = _without_chance(traced.pretty_print(use_color=False)).encode()
  constants = [np.asarray(constant).tobytes() for constant in traced.consts]
  return hashlib.sha256(b''.join([text, *constants])).hexdigest()[:16]


def _without_chance(text: str) -> str:
  """Returns the text of a jaxpr without what differs between processes.

  That is where in memory the functions are that the program may still call, and
  the order of a set of names.
  """

  def ordered(found):
    return f'{{{", ".join(sorted(found[1].split(", ")))}}}'

  return re.sub("{('[^{}:]*')}", ordered, re.sub('0x[0-9a-f]+', '', text))
