"""Methods composed of parts, for the conformance tests.

`PRESETS` has the methods with their defaults, and with fields that change their
behavior. `GRID` combines every trigger with every averager; the row of a pair
names its wire, reducer and policy for the optimizer's state, so that a new part
changes no other row. `REFUSED` has the combinations that cannot be right, with
the reason. `REST` has the parts that occur in none of these, each in local SGD.
"""

from collections.abc import Callable, Iterator
import itertools
from typing import Any

from selsync_jax import methods

CONTEXT = methods.Context(steps_per_epoch=8, seed=0)

_OUTER = {
  'name': 'outer',
  'optimizer': {'name': 'sgd', 'learning_rate': 0.7, 'momentum': 0.5},
}

PRESETS = {name: (name, {}) for name in methods.METHODS} | {
  'selsync, grads': ('selsync', {'delta': 0.3, 'aggregate': 'grads'}),
  'selsync, quorum': ('selsync', {'delta': 0.3, 'quorum': 0.5}),
  'selsync, vote delay': ('selsync', {'delta': 0.3, 'vote_delay': 1}),
  'selsync, rarely': ('selsync', {'delta': 0.3, 'vote_every': 4}),
  'selsync, bounded': ('selsync', {'delta': 10.0, 'max_period': 5}),
  'bsp, clipped': (
    'bsp',
    {'reducer': {'name': 'clipped', 'norm': 1.0, 'reducer': 'all_reduce'}},
  ),
  'fedavg, half': ('fedavg', {'fraction': 0.5, 'epochs': 0.5}),
  'diloco, often': ('diloco', {'period': 8}),
  # The default's first phase lasts longer than these tests.
  'post_local': ('post_local', {'switch': 2.0}),
  'post_local, soon': ('post_local', {'switch': 1.0, 'period': 4}),
  # The default density selects fewer elements than there are workers.
  'micro': ('micro', {'density': 0.2}),
  'exdyna': ('exdyna', {'density': 0.2}),
  # The toy has few elements, and 64 steps.
  'sparse_loco': ('sparse_loco', {'period': 4, 'density': 0.3}),
  'muloco': ('muloco', {'period': 8}),
  'edit': ('edit', {'period': 8}),
  'noloco': ('noloco', {'period': 8}),
  'diloco, sparta': (
    'local_sgd',
    {
      'period': 1,
      'averager': {
        'name': 'interleave',
        'k': 4,
        'averager': _OUTER,
        'between': {'name': 'fragments', 'k': 3, 'how': 'random'},
      },
    },
  ),
  'lag, 4 bits': ('lag', {'bits': 4}),
  'fda, sketch': ('fda', {'theta': 1e-3, 'variant': 'sketch'}),
  'gossip, ring': ('gossip', {'topology': 'ring'}),
  'gossip, random': ('gossip', {'topology': 'random', 'period': 2}),
  'groups, random': ('groups', {'how': 'random', 'all_every': None}),
  'sparta, dense': ('sparta', {'fragments': 3}),
  # A mean is in flight after the 10th step, and after the 20th.
  'local_sgd, late': (
    'local_sgd',
    {'period': 4, 'delay': {'steps': 3, 'keep': 0.5, 'extrapolate': 0.5}},
  ),
  'selsync, late': ('selsync', {'delta': 0.3, 'delay': 2, 'wire': 'int8'}),
  'diloco, late': (
    'diloco',
    {'period': 4, 'delay': {'steps': 3, 'keep': 0.0, 'mix': 0.5}},
  ),
  'streaming_diloco, late': ('streaming_diloco', {'delay': 3}),
  'edit, late': (  # Two rounds of messages.
    'edit',
    {'period': 4, 'delay': {'steps': 2, 'keep': 0.0, 'mix': 0.5}},
  ),
  'gossip, late': ('gossip', {'delay': 1}),
  'local_sgd, moments, late': (
    'local_sgd',
    {'period': 4, 'delay': 3, 'optimizer_state': 'mean'},
  ),
  'diloco, eager': (
    'local_sgd',
    {
      'period': 4,
      'averager': {
        'name': 'eager_outer',
        'optimizer': {'name': 'sgd', 'learning_rate': 0.5},
      },
    },
  ),
}

_SELSYNC = {'name': 'selsync', 'delta': 0.15}
_TRIGGERS = {
  'every': {'name': 'every', 'k': 3},
  'selsync': _SELSYNC,
  'any_of': {
    'name': 'any_of',
    'change': _SELSYNC,
    'bound': {'name': 'max_interval', 'k': 4},
  },
  'min_interval': {'name': 'min_interval', 'k': 2, 'trigger': _SELSYNC},
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
_AVERAGERS = {
  'none': {'name': 'none'},
  'mean': {'name': 'mean'},
  'subset_mean': {'name': 'subset_mean', 'fraction': 0.5},
  'outer': _OUTER,
  'gossip': {'name': 'gossip', 'topology': 'exponential'},
  'groups': {'name': 'groups', 'size': 2, 'all_every': 3},
  'fragments': {'name': 'fragments', 'k': 3, 'averager': _OUTER},
}
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
# By trigger and averager: wire, reducer, optimizer state; and whether a worker
# recomputes the model state instead of averaging it.
_ROWS = {
  'every, mean': ('bfloat16', 'all_reduce', 'mean'),
  'every, subset_mean': ('int8', 'at_sync', 'reset'),
  'every, outer': ('float32', 'int8', 'local'),
  'every, gossip': ('float32', 'top_k', 'local', 'recompute'),
  'every, groups': ('float32', 'power_sgd', 'local'),
  'every, fragments': ('float32', 'exdyna', 'local'),
  'selsync, none': ('float32', 'at_sync', 'local'),
  'selsync, mean': ('float32', 'at_sync', 'local'),
  'selsync, subset_mean': ('bfloat16', 'int8', 'mean'),
  'selsync, outer': ('int8', 'top_k', 'reset', 'recompute'),
  'selsync, gossip': ('float32', 'power_sgd', 'local'),
  'selsync, groups': ('float32', 'exdyna', 'local'),
  'any_of, mean': ('int8', 'int8', 'reset'),
  'any_of, subset_mean': ('float32', 'top_k', 'local', 'recompute'),
  'any_of, outer': ('bfloat16', 'power_sgd', 'mean'),
  'any_of, gossip': ('float32', 'exdyna', 'local'),
  'min_interval, mean': ('bfloat16', 'top_k', 'mean', 'recompute'),
  'min_interval, subset_mean': ('int8', 'power_sgd', 'reset'),
  'min_interval, outer': ('float32', 'exdyna', 'local'),
  'min_interval, groups': ('float32', 'none', 'local', 'recompute'),
  'min_interval, fragments': ('float32', 'all_reduce', 'local'),
  'post_local, mean': ('float32', 'power_sgd', 'local'),
  'post_local, subset_mean': ('bfloat16', 'exdyna', 'mean'),
  'post_local, outer': ('int8', 'at_sync, micro', 'reset'),
  'post_local, gossip': ('float32', 'none', 'local', 'recompute'),
  'post_local, groups': ('float32', 'all_reduce', 'local'),
  'post_local, fragments': ('int8', 'at_sync', 'local'),
  'qsr, mean': ('int8', 'exdyna', 'reset'),
  'qsr, subset_mean': ('float32', 'at_sync, micro', 'local'),
  'qsr, outer': ('bfloat16', 'none', 'mean', 'recompute'),
  'qsr, gossip': ('float32', 'all_reduce', 'local'),
  'qsr, groups': ('float32', 'at_sync', 'local'),
  'fda, subset_mean': ('int8', 'none', 'reset', 'recompute'),
  'fda, outer': ('float32', 'all_reduce', 'local'),
  'budgeted, mean': ('float32', 'none', 'local', 'recompute'),
  'budgeted, subset_mean': ('bfloat16', 'all_reduce', 'mean'),
  'budgeted, outer': ('int8', 'at_sync', 'reset'),
  'budgeted, gossip': ('float32', 'int8', 'local'),
  'budgeted, groups': ('float32', 'top_k', 'local', 'recompute'),
  'budgeted, fragments': ('int8', 'power_sgd', 'local'),
  'budgeted fda, mean': ('int8', 'all_reduce', 'reset'),
  'budgeted fda, outer': ('bfloat16', 'int8', 'mean'),
}


def create(method, fields):
  """The strategy of a preset, with some of its parts replaced."""
  return methods.create_strategy(method, CONTEXT, **fields)


def _composition(pair, wire, reducer, optimizer_state, model_state='mean'):
  """The replacements for the parts of a preset."""
  trigger, averager = pair.split(', ')
  return (
    'local_sgd',
    {
      'trigger': _TRIGGERS[trigger],
      'averager': _AVERAGERS[averager],
      'wire': wire,
      'reducer': _REDUCERS[reducer],
      'optimizer_state': optimizer_state,
      'model_state': model_state,
    },
  )


# By a part of the reason, the rows that cannot be right.
_REASONS = {
  'would decide nothing': {
    'every, none': ('float32', 'all_reduce', 'local', 'recompute'),
    'any_of, none': ('float32', 'int8', 'local'),
    'min_interval, none': ('float32', 'top_k', 'local'),
    'post_local, none': ('float32', 'power_sgd', 'local', 'recompute'),
    'qsr, none': ('float32', 'exdyna', 'local'),
    'budgeted, none': ('float32', 'all_reduce', 'local'),
  },
  'lets parameters differ': {
    'selsync, fragments': ('int8', 'at_sync, micro', 'reset'),
    'any_of, groups': ('float32', 'at_sync, micro', 'local'),
    'min_interval, gossip': ('float32', 'at_sync, micro', 'local'),
    'fda, none': ('float32', 'at_sync, micro', 'local'),
  },
  'measures from common parameters': {
    'fda, gossip': ('float32', 'at_sync', 'local'),
    'fda, groups': ('float32', 'int8', 'local'),
    'fda, fragments': ('float32', 'top_k', 'local', 'recompute'),
    'budgeted fda, none': ('float32', 'at_sync', 'local', 'recompute'),
    'budgeted fda, gossip': ('float32', 'top_k', 'local', 'recompute'),
    'budgeted fda, groups': ('float32', 'power_sgd', 'local'),
    'budgeted fda, fragments': ('bfloat16', 'exdyna', 'mean'),
  },
  'comes before the local update': {
    'fda, mean': ('bfloat16', 'at_sync, micro', 'mean'),
    'budgeted fda, subset_mean': ('float32', 'at_sync', 'local'),
  },
  'needs averages of all parameters': {
    'any_of, fragments': ('bfloat16', 'none', 'mean', 'recompute'),
    'qsr, fragments': ('bfloat16', 'int8', 'mean'),
  },
}

GRID = {pair: _composition(pair, *row) for pair, row in _ROWS.items()}
REFUSED = {
  pair: (_composition(pair, *row), why)
  for why, rows in _REASONS.items()
  for pair, row in rows.items()
}
PAIRS = {f'{t}, {a}' for t, a in itertools.product(_TRIGGERS, _AVERAGERS)}


def constructors(part: Any) -> Iterator[Callable[..., Any]]:
  """The constructors of a part, and of the parts inside it."""
  if recipe := getattr(part, 'recipe', None):
    yield recipe.constructor
    for value in recipe.arguments.args:
      yield from constructors(value)
    for value in recipe.arguments.kwargs.values():
      yield from constructors(value)


_COMPOSED = {
  constructor
  for composition in (PRESETS | GRID).values()
  for part in create(*composition)
  for constructor in constructors(part)
}
REST = {
  f'{kind} {name}': ('local_sgd', {'period': 4, kind: {'name': name}})
  for kind, table in methods.PARTS.items()
  for name, constructor in table.items()
  if constructor not in _COMPOSED
}
# Only `make test-all` runs these. The remaining tests have one of each kind of
# message and decision, and every new part that is not listed here.
SLOW = {
  *GRID,
  *(
    'selsync_paper',
    'selsync, quorum',
    'selsync, vote delay',
    'selsync, rarely',
  ),
  *('selsync, bounded', 'selsync, late', 'bsp, clipped', 'fda, sketch'),
  *('local_sgd', 'local_sgd, moments, late', 'post_local', 'post_local, soon'),
  *('qsr', 'fedavg', 'fedavg, half', 'fedprox', 'scaffold', 'slowmo'),
  *('fedadam', 'fedyogi', 'fedadagrad', 'diloco', 'diloco, sparta'),
  *('diloco, late', 'diloco, eager', 'streaming_diloco, late', 'sparse_loco'),
  *('muloco', 'edit', 'noloco', 'sparta', 'sparta, dense', 'gossip, ring'),
  *('gossip, random', 'gossip, late', 'groups', 'groups, random', 'exdyna'),
  *('lag', 'lag, 4 bits', 'wire int4', 'wire int2'),
}
