"""The data sets: one file and one row of a table each.

A data set is a function whose keyword-only parameters are fields of
`config.data`. It returns an `ArrayDataset`, for any backend, or a `Source` that
TFDS reads, for the backend 'tf'.
"""

from selsync_jax.config import Registry
from selsync_jax.data.sources.cifar import cifar10
from selsync_jax.data.sources.cifar import cifar100
from selsync_jax.data.sources.digits import digits
from selsync_jax.data.sources.hyperplane import hyperplane
from selsync_jax.data.sources.imagenet2012 import imagenet2012
from selsync_jax.data.sources.stdlib_text import stdlib_text
from selsync_jax.data.sources.wikitext103 import wikitext103

BY_NUMPY = {
  'digits': digits,
  'hyperplane': hyperplane,
  'stdlib_text': stdlib_text,
}
BY_TFDS = {
  'cifar10': cifar10,
  'cifar100': cifar100,
  'imagenet2012': imagenet2012,
  'wikitext103': wikitext103,
}
DATASETS = Registry('data set', BY_NUMPY | BY_TFDS)
"""The functions of all data sets by name, including the user's own."""
