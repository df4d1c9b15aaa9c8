"""Selective synchronization for data-parallel training in JAX.

The names that this package offers stand in `__init__.pyi`. They are imported on
first use, so that a command can read its flags before it loads JAX. Those of a
loop of your own need no TensorFlow. `load` and `register_*` need what the extra
`train` installs.
"""

import lazy_loader

__version__ = '0.1.0'  # pyproject.toml reads it here.

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
