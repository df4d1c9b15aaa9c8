"""Data sets, their division among workers, and batches.

`open_data` opens the data set of a config and assigns its examples to workers,
in two steps: `open_dataset` and `assign`. The result is a `Data`. TensorFlow is
imported in `tfdata` alone, and only when `data.backend` is 'tf'. Your own data
set is a function that `register_dataset` decorates, and that returns the result
of one of the functions `from_*`.
"""

from selsync_jax.data.graindata import from_grain as from_grain
from selsync_jax.data.opening import assign as assign
from selsync_jax.data.opening import bind_data as bind_data
from selsync_jax.data.opening import BoundData as BoundData
from selsync_jax.data.opening import open_data as open_data
from selsync_jax.data.opening import open_dataset as open_dataset
from selsync_jax.data.own import from_arrays as from_arrays
from selsync_jax.data.own import from_huggingface as from_huggingface
from selsync_jax.data.own import from_tf as from_tf
from selsync_jax.data.own import from_tfds as from_tfds
from selsync_jax.data.own import register_dataset as register_dataset
from selsync_jax.data.protocol import Batch as Batch
from selsync_jax.data.protocol import Data as Data
