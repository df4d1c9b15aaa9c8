"""Triggers, averagers and reducers, and the traffic they cause.

This subpackage imports nothing heavier than jax and optax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
  __name__, ['optimizer_state', 'reducers', 'resizing', 'wires']
)
