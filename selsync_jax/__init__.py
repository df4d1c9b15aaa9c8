"""Selective synchronization for data-parallel training in JAX.

What is imported here needs jax and optax alone. The trainer, the data rooms
and the models are modules of their own.
"""

from selsync_jax.selsync import AXIS
from selsync_jax.selsync import consensus
from selsync_jax.selsync import measure
from selsync_jax.selsync import MeasureState
from selsync_jax.selsync import selsync
from selsync_jax.selsync import SelSyncState
from selsync_jax.selsync import synchronize
from selsync_jax.strategies.diloco import outer
from selsync_jax.strategies.fedavg import subset_mean
from selsync_jax.strategies.parts import all_reduce
from selsync_jax.strategies.parts import Averager
from selsync_jax.strategies.parts import every
from selsync_jax.strategies.parts import keep
from selsync_jax.strategies.parts import mean
from selsync_jax.strategies.parts import on_sync
from selsync_jax.strategies.parts import Strategy
