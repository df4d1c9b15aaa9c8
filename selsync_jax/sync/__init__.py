"""Triggers, averagers, reducers, and what they send.

Needs only jax and optax.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
  __name__, ['moments', 'reducers', 'resizing', 'wires']
)
