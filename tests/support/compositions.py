"""Methods composed of parts: what the conformance suite runs through.

`PRESETS` are the methods with their defaults, and with fields that change what
they do. `GRID` combines every trigger with every averager; wires, reducers and
policies for the optimizer's state take turns. `REFUSED` names the combinations
that cannot be right, and says why; `ALL` has them, too.
"""

import itertools

from selsync_jax import methods

CONTEXT = methods.Context(steps_per_epoch=8, seed=0)

PRESETS = {name: (name, {}) for name in methods.METHODS} | {
  'selsync, grads': ('selsync', {'delta': 0.3, 'aggregate': 'grads'}),
  'selsync, quorum': ('selsync', {'delta': 0.3, 'quorum': 0.5}),
  'selsync, lag': ('selsync', {'delta': 0.3, 'lag': 1}),
  'selsync, rarely': ('selsync', {'delta': 0.3, 'vote_every': 4}),
  'selsync, bounded': ('selsync', {'delta': 10.0, 'max_period': 5}),
  'fedavg, half': ('fedavg', {'fraction': 0.5, 'epochs': 0.5}),
  'diloco, often': ('diloco', {'period': 8}),
  'post_local, soon': ('post_local', {'switch': 1.0, 'period': 4}),
  'fda, sketch': ('fda', {'theta': 1e-3, 'variant': 'sketch'}),
  'gossip, ring': ('gossip', {'topology': 'ring'}),
  'gossip, random': ('gossip', {'topology': 'random', 'period': 2}),
  'groups, random': ('groups', {'how': 'random', 'all_every': None}),
  'sparta, dense': ('sparta', {'fragments': 3}),
}

# One of each kind of message and decision; `make test-all` has the others.
QUICK = (
  'selsync',
  'selsync, grads',
  'bsp',
  'fda',
  'diloco, often',
  'streaming_diloco',
  'gossip',
  'top_k',
  'micro',
  'power_sgd',
  'int8',
)

_SELSYNC = {'name': 'selsync', 'delta': 0.02}
_TRIGGERS = {
  'every': {'name': 'every', 'k': 3},
  'selsync': _SELSYNC,
  'any_of': {
    'name': 'any_of',
    'change': _SELSYNC,
    'bound': {'name': 'at_least_every', 'k': 4},
  },
  'at_most_every': {'name': 'at_most_every', 'k': 2, 'trigger': _SELSYNC},
  'post_local': {'name': 'post_local', 'switch': 10, 'k': 4},
  'qsr': {'name': 'qsr', 'alpha': 0.17, 'h_min': 2},
  'fda': {'name': 'fda', 'theta': 0.02},
  'budgeted': {'name': 'budgeted', 'trigger': _SELSYNC, 'lssr': 0.7},
  'budgeted fda': {
    'name': 'budgeted',
    'trigger': {'name': 'fda', 'theta': 1.0, 'variant': 'naive'},
    'lssr': 0.7,
  },
}
_OUTER = {
  'name': 'outer',
  'optimizer': {'name': 'sgd', 'learning_rate': 0.7, 'momentum': 0.5},
}
_AVERAGERS = {
  'none': {'name': 'none'},
  'mean': {'name': 'mean'},
  'subset_mean': {'name': 'subset_mean', 'fraction': 0.5},
  'outer': _OUTER,
  'gossip': {'name': 'gossip', 'topology': 'exponential'},
  'groups': {'name': 'groups', 'size': 2, 'all_every': 3},
  'fragments': {'name': 'fragments', 'k': 3, 'averager': _OUTER},
}
_WITHOUT_CONSENSUS = ('none', 'gossip', 'groups')
_WIRES = ('float32', 'int8', 'bfloat16')
_REDUCERS = {
  'none': 'none',
  'all_reduce': 'all_reduce',
  'at_sync': {'name': 'at_sync', 'reducer': 'all_reduce'},
  'int8': 'int8',
  'top_k': {'name': 'top_k', 'density': 0.2},
  'power_sgd': {'name': 'power_sgd', 'rank': 2},
  'exdyna': {'name': 'exdyna', 'density': 0.2},
  'at_sync, micro': {
    'name': 'at_sync',
    'reducer': {'name': 'micro', 'density': 0.2},
  },
}
_OPTIMIZER_STATES = ('local', 'mean', 'reset')


def create(method, fields):
  """The strategy of a preset, with some of its parts replaced."""
  return methods.create_strategy(method, CONTEXT, **fields)


def _compositions():
  """Each name with what it replaces in a preset."""
  pairs = itertools.product(enumerate(_TRIGGERS), enumerate(_AVERAGERS))
  for (i, trigger), (j, averager) in pairs:
    reducers = [*_REDUCERS][averager == 'none' :]
    reducer = reducers[(i + j) % len(reducers)]
    wire = _WIRES[(i + 2 * j) % 3]
    state = _OPTIMIZER_STATES[(2 * i + j) % 3]
    if averager in _WITHOUT_CONSENSUS:
      wire, state = 'float32', 'local'
    parts = {
      'trigger': _TRIGGERS[trigger],
      'averager': _AVERAGERS[averager],
      'wire': wire,
      'reducer': _REDUCERS[reducer],
      'optimizer_state': state,
      'model_state': ('mean', 'recompute')[(i + j) % 4 == 0],
    }
    name = f'{trigger}, {averager} on {wire}, {reducer}, {state}'
    yield name, ('local_sgd', parts)


# Of the grid, what cannot be right, and a part of the reason.
_REASONS = {
  'would decide nothing': (
    'every, none on float32, all_reduce, local',
    'any_of, none on float32, int8, local',
    'at_most_every, none on float32, top_k, local',
    'post_local, none on float32, power_sgd, local',
    'qsr, none on float32, exdyna, local',
    'budgeted, none on float32, all_reduce, local',
  ),
  'lets parameters differ': (
    'selsync, fragments on int8, at_sync, micro, reset',
    'any_of, groups on float32, at_sync, micro, local',
    'at_most_every, gossip on float32, at_sync, micro, local',
    'fda, none on float32, at_sync, micro, local',
  ),
  'measures from common parameters': (
    'fda, gossip on float32, at_sync, local',
    'fda, groups on float32, int8, local',
    'fda, fragments on float32, top_k, local',
    'budgeted fda, none on float32, at_sync, local',
    'budgeted fda, gossip on float32, top_k, local',
    'budgeted fda, groups on float32, power_sgd, local',
    'budgeted fda, fragments on bfloat16, exdyna, mean',
  ),
  'comes before the local update': (
    'fda, mean on bfloat16, at_sync, micro, mean',
    'budgeted fda, subset_mean on float32, at_sync, local',
  ),
  'averages over all workers': (
    'any_of, fragments on bfloat16, none, mean',
    'qsr, fragments on bfloat16, int8, mean',
  ),
}

ALL = dict(_compositions())
REFUSED = {name: why for why, names in _REASONS.items() for name in names}
GRID = {name: c for name, c in ALL.items() if name not in REFUSED}
