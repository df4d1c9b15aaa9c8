"""The data sets: one function and one row of a table each.

A data set is a function whose keyword-only parameters are fields of
`config.data`. It returns an `ArrayDataset`, for any backend, or a `Source` that
TFDS reads, for the backend 'tf'.
"""

from collections.abc import Callable
from typing import Any

from selsync_jax.config import Registry
from selsync_jax.data.sources.hyperplane import hyperplane
from selsync_jax.data.sources.images import cifar10
from selsync_jax.data.sources.images import cifar100
from selsync_jax.data.sources.images import digits
from selsync_jax.data.sources.images import imagenet2012
from selsync_jax.data.sources.text import stdlib_text
from selsync_jax.data.sources.text import wikitext103


def _by_name(*functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
  return {function.__name__: function for function in functions}


BY_NUMPY = _by_name(digits, hyperplane, stdlib_text)
BY_TFDS = _by_name(cifar10, cifar100, imagenet2012, wikitext103)
DATASETS = Registry('data set', BY_NUMPY | BY_TFDS)
"""The functions of all data sets by name, including the user's own."""
