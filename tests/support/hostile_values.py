"""Values that a hurried user gives to a field of the config."""

from collections.abc import Iterator
import random

from selsync_jax.commands import config_file
from selsync_jax.config import flat

VALUES = (
  *('None', 'nan', 'inf', '-inf', '-1', '0', '1', '2', '3', '7', '64', '300'),
  *('2147483648', '99999999999999999999', '1e-300', '0.3', '0.999', '1.5'),
  *('-0.5', '1e20', '1e300', 'x', '', 'true', '(1,)', '(nan, -1)', '[]', '{}'),
  *('../..', '/nowhere', 'é', 'bsp', 'adamw', 'sm3', 'dpsgd'),
  *('polyak_sgd', 'lbfgs', 'cosine', 'milestones', 'by_label', 'dirichlet'),
  *('resnet', 'decoder', 'vmap', 'skip', 'clone', 'matrices', 'bfloat16'),
)

# Small enough that a step takes no time, and read without TensorFlow.
QUICK = (
  '--config.data.backend=numpy',
  '--config.mapper=vmap',
  '--config.steps=2',
  '--config.batch_size=8',
  '--config.model.num_filters=2',
)


def fields(file: str) -> list[str]:
  """The names of all fields of a config."""
  return sorted(flat(config_file.load(file, ()).to_dict()))


def one_field(file: str) -> Iterator[str]:
  """Every value for every field, as flags."""
  for field in fields(file):
    for value in VALUES:
      yield f'--config.{field}={value}'


def several_fields(file: str, rng: random.Random) -> list[str]:
  """Flags for a few fields."""
  chosen = rng.sample(fields(file), rng.randint(1, 4))
  return [f'--config.{field}={rng.choice(VALUES)}' for field in chosen]


_OPENING = """from selsync_jax.configs import digits


def get_config(method='selsync'):
  config = digits.get_config(method)
"""

# By name: the text of a config file, and its refusal. The file's path comes
# before a colon.
FILES = {
  'raises': (_OPENING + '  1 / 0\n', ':6: ZeroDivisionError: division by zero'),
  'raises outside': ('raise OSError("a\\nb")\n', ':1: OSError: a b'),
  'exits': ('import sys\nsys.exit(3)\n', ':2: SystemExit: 3'),
  'ends a generator': ('raise GeneratorExit\n', ':1: GeneratorExit: '),
  'asserts': (_OPENING + '  assert False\n', ':6: AssertionError: '),
  'wrong type': (
    _OPENING + '  config.workers = "four"\n',
    ":6: TypeError: Could not override field 'workers' (reference). four is of "
    "original type <class 'str'> and cannot be casted to type <class 'int'>",
  ),
  'wrong call': (
    _OPENING + '  config.missing.field = 1\n',
    ':6: AttributeError: "\'missing\'"',
  ),
  'no function': ('x = 1\n', ': has no function get_config'),
  'not Python': ('def get_config(:\n', ':1: SyntaxError: invalid syntax'),
  'returns nothing': (
    _OPENING,
    ': get_config must return a ConfigDict, got None',
  ),
  'returns a dict': (
    'def get_config():\n  return {}\n',
    ': get_config must return a ConfigDict, got {}',
  ),
  'adds a field': (
    _OPENING + '  config.wrokers = 4\n  return config\n',
    'config.wrokers=4: there is no such field',
  ),
  'adds an object': (
    _OPENING + '  config.model.act = print\n  return config\n',
    'config.model.act: must be a number, a text, a list or None, got a '
    'builtin_function_or_method',
  ),
  'starts from nothing': (
    'from ml_collections import ConfigDict\nget_config = ConfigDict\n',
    'config.workers is missing; start from get_config of configs/base.py',
  ),
}
