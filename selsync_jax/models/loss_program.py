"""Digests that identify a model's computation in training.

They cover the traced loss, so they distinguish two models of the same name.
"""

from collections.abc import Mapping
import hashlib
import re
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from selsync_jax.models import tasks


def digests(
  model: nn.Module,
  task: tasks.Task,
  shapes: Mapping[str, Any],
  batch: tasks.Batch,
) -> dict[str, str]:
  """Returns digests of the traced loss of training and of its constants.

  They are equal in all processes. On a terminal, where JAX prints in color,
  earlier versions recorded `program_in_color`.
  """
  traced = jax.make_jaxpr(tasks.train_loss(model, task))(
    shapes['params'], shapes['model_state'], batch, jax.random.key(0)
  )
  constants = [np.asarray(constant).tobytes() for constant in traced.consts]

  def digest(use_color):
    text = _without_chance(traced.pretty_print(use_color=use_color))
    return hashlib.sha256(b''.join([text.encode(), *constants])).hexdigest()[
      :16
    ]

  return {'program': digest(False), 'program_in_color': digest(True)}


def _without_chance(text: str) -> str:
  """Returns the text of a jaxpr without differences between processes.

  These are the memory addresses of functions that the program may still call,
  and the order of a set of names.
  """

  def ordered(found):
    return f'{{{", ".join(sorted(found[1].split(", ")))}}}'

  return re.sub("{('[^{}:]*')}", ordered, re.sub('0x[0-9a-f]+', '', text))
