"""The names that `import selsync_jax` offers, by the module that defines them.

`__init__.py` reads them here, and so do type checkers.
"""

from .cluster.processes import join as join
from .commands.compare import compare as compare
from .commands.compare import comparison as comparison
from .commands.plan import plan as plan
from .commands.train import train as train
from .data.own import register_dataset as register_dataset
from .devices.layout import Layout as Layout
from .islands.island import Island as Island
from .methods import register_method as register_method
from .models import register_model as register_model
from .models.tasks import register_task as register_task
from .runs.recorder import Recorder as Recorder
from .runs.weights import load as load
from .runs.writers import register_writer as register_writer
from .runs.writers import Writer as Writer
from .sync import optimizer_state as optimizer_state
from .sync import reducers as reducers
from .sync import resizing as resizing
from .sync import wires as wires
from .sync.alternation import interleave as interleave
from .sync.averagers import Averager as Averager
from .sync.averagers import mean as mean
from .sync.averagers import no_averaging as no_averaging
from .sync.averagers import outer as outer
from .sync.averagers import subset_mean as subset_mean
from .sync.budget import budgeted as budgeted
from .sync.change import measure as measure
from .sync.change import MeasureState as MeasureState
from .sync.consensus import AXIS as AXIS
from .sync.consensus import consensus as consensus
from .sync.consensus import synchronize as synchronize
from .sync.copies import Leaves as Leaves
from .sync.copies import parameter_copies as parameter_copies
from .sync.decision import decision as decision
from .sync.delay import delayed as delayed
from .sync.delay import eager_outer as eager_outer
from .sync.drift import proximal as proximal
from .sync.drift import scaffold as scaffold
from .sync.exchange import gossip as gossip
from .sync.exchange import groups as groups
from .sync.fda import fda as fda
from .sync.fda import FDAState as FDAState
from .sync.fragments import fragments as fragments
from .sync.lazy import lazy as lazy
from .sync.optimizer_state import Moments as Moments
from .sync.part import part as part
from .sync.power_sgd import power_sgd as power_sgd
from .sync.reducers import all_reduce as all_reduce
from .sync.reducers import at_sync as at_sync
from .sync.reducers import no_reduction as no_reduction
from .sync.robust import robust_mean as robust_mean
from .sync.selsync import selsync as selsync
from .sync.selsync import SelSyncState as SelSyncState
from .sync.sparse import exdyna as exdyna
from .sync.sparse import micro as micro
from .sync.sparse import top_k as top_k
from .sync.sparse_wire import sparse as sparse
from .sync.strategy import Strategy as Strategy
from .sync.traffic import annotated as annotated
from .sync.traffic import Collective as Collective
from .sync.transformation import Reducer as Reducer
from .sync.transformation import Trigger as Trigger
from .sync.triggers import any_of as any_of
from .sync.triggers import every as every
from .sync.triggers import max_interval as max_interval
from .sync.triggers import min_interval as min_interval
from .sync.triggers import post_local as post_local
from .sync.triggers import qsr as qsr
from .sync.wires import Wire as Wire
from .sync.worker_mesh import in_use as in_use

__version__: str
