"""The fields of `config.data`, and which data set has which of them."""

from collections.abc import Mapping
from typing import Any

from selsync_jax.config import keyword_arguments
from selsync_jax.config import lookup
from selsync_jax.config import number
from selsync_jax.config import one_of
from selsync_jax.config import optional
from selsync_jax.config import share
from selsync_jax.config import TEXT
from selsync_jax.config import whole
from selsync_jax.data.sources import DATASETS

SOURCE_FIELDS = ('image_size', 'channels', 'bptt', 'window', 'dimensions')

RULES = {
  'name': TEXT,
  'backend': one_of('auto', 'tf', 'numpy'),
  'partition': TEXT,
  'labels_per_worker': optional(whole(1)),
  'dirichlet_alpha': optional(number(above=0, most=1e6)),
  'injection.alpha': share(may_be_one=True),
  'injection.beta': share(may_be_one=True),
  'image_size': optional(whole(1, 4096)),
  'channels': optional(one_of(1, 3)),
  'bptt': optional(whole(1, 2**16)),
  'window': optional(whole(1, 10**6)),
  'dimensions': optional(whole(1, 2**16)),
  'dir': optional(TEXT),
}
_COMMON = {name.partition('.')[0] for name in RULES} - {*SOURCE_FIELDS}


def check_source(fields: Mapping[str, Any]) -> None:
  """Raises `ValueError` if a data set lacks a field, or has no such field."""
  name = fields['name']
  keyword_arguments(lookup(DATASETS, name), name, own_fields(fields))


def own_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
  """The fields that only some data sets have."""
  return {k: v for k, v in fields.items() if k not in _COMMON}
