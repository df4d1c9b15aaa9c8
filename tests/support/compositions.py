"""Methods composed of parts, for the conformance tests.

`PRESETS` has the methods with their defaults, and with fields that change their
behavior. `GRID` combines every trigger with every averager; the names of a pair
draw its wire, reducer and policy for the optimizer's state, so that a new part
of these kinds changes no other pair. `REFUSED` has the pairs whose draw cannot
be right. `REST` has the parts that occur in none of these, each in local SGD.
`OPTIMIZERS` has the local optimizers of methods that need a certain one.
"""

from collections.abc import Callable, Iterator
import itertools
import random
from typing import Any

import optax

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

OPTIMIZERS = {'des_loc': optax.adam(0.02, eps=1e-3)}

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
_MEANS = {  # Over all workers, of all parameters: averaged moments need it.
  'mean': {'name': 'mean'},
  'subset_mean': {'name': 'subset_mean', 'fraction': 0.5},
  'outer': _OUTER,
}
_WIRED = _MEANS | {
  'fragments': {'name': 'fragments', 'k': 3, 'averager': _OUTER},
}
_AVERAGERS = _WIRED | {
  'none': {'name': 'none'},
  'gossip': {'name': 'gossip', 'topology': 'exponential'},
  'groups': {'name': 'groups', 'size': 2, 'all_every': 3},
}
_REDUCERS = (
  *('none', 'all_reduce', 'int8'),
  {'name': 'at_sync', 'reducer': 'all_reduce'},
  {'name': 'top_k', 'density': 0.2},
  {'name': 'power_sgd', 'rank': 2},
  {'name': 'exdyna', 'density': 0.2},
  {'name': 'at_sync', 'reducer': {'name': 'micro', 'density': 0.2}},
)


def create(method, fields):
  """The strategy of a preset, with some of its parts replaced."""
  return methods.create_strategy(method, CONTEXT, **fields)


def _drawn(pair):
  """The parts of a pair, and others drawn by its name."""
  trigger, averager = pair.split(', ')
  choice = random.Random(pair).choice
  wire = choice(['float32', 'bfloat16', 'int8'])
  reducer = choice(_REDUCERS)
  policy = choice(['local', 'mean', 'reset'])
  return {
    'trigger': _TRIGGERS[trigger],
    'averager': _AVERAGERS[averager],
    'wire': wire if averager in _WIRED else 'float32',
    'reducer': reducer,
    'optimizer_state': policy if averager in _MEANS else 'local',
    'model_state': choice(['mean', 'recompute']),
  }


GRID, REFUSED = {}, {}
for _pair in map(', '.join, itertools.product(_TRIGGERS, _AVERAGERS)):
  try:
    create('local_sgd', _drawn(_pair))
    GRID[_pair] = 'local_sgd', _drawn(_pair)
  except ValueError as error:
    REFUSED[_pair] = str(error)


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
  *('des_loc', 'fedadam', 'fedyogi', 'fedadagrad', 'diloco', 'diloco, sparta'),
  *('diloco, late', 'diloco, eager', 'streaming_diloco, late', 'sparse_loco'),
  *('muloco', 'edit', 'noloco', 'sparta', 'sparta, dense', 'gossip, ring'),
  *('gossip, random', 'gossip, late', 'groups', 'groups, random', 'exdyna'),
  *('lag', 'lag, 4 bits', 'wire int4', 'wire int2', 'partial'),
  *('averager centered_clip', 'averager trimmed_mean'),
}
