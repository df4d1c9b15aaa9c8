"""The data sets: one function and one row of a table each.

A data set is a function whose keyword-only parameters are fields of
`config.data`. Optional parameters `directory` and `backend` are TFDS's data
directory and the library that reads the data.
"""

from selsync_jax.config import Registry
from selsync_jax.data.sources.hyperplane import hyperplane
from selsync_jax.data.sources.images import (
  cifar10,
  cifar100,
  digits,
  fashion_mnist,
  imagenet2012,
)
from selsync_jax.data.sources.text import python_text, stdlib_text, wikitext103

_BY_ANY = digits, fashion_mnist, hyperplane, python_text, stdlib_text
_READ_BY_TFDS = cifar10, cifar100, imagenet2012, wikitext103
BY_NUMPY = {f.__name__: f for f in _BY_ANY}
BY_TFDS = {f.__name__: f for f in _READ_BY_TFDS}
LATE_IMPORTS = {'digits': ('sklearn.datasets', 'sklearn.model_selection')}
"""Libraries that a data set imports only when it is called."""
DATASETS = Registry('data set', BY_NUMPY | BY_TFDS)
"""The functions of all data sets by name, including the user's own."""
