"""Trains a model with N workers: `python train.py --config=...`.

Exit codes: 0, done; 1, the run failed; 2, a mistake in flags or config.
"""

import os
import pathlib
import sys

from absl import app
from absl import flags
from absl import logging
from ml_collections import config_flags

from selsync_jax import workers
from selsync_jax.config import check
from selsync_jax.config import ConfigError
from selsync_jax.ledger import NonFiniteError

_DEFAULT = pathlib.Path(__file__).parent / 'configs' / 'digits.py'
_CONFIG = config_flags.DEFINE_config_file(
  'config',
  help_string='The config file; FILE:METHOD picks a method. Default: '
  f'{_DEFAULT}. Its fields are flags too: --config.sync.delta=0.3',
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where the run is written. Default: runs/CONFIG-METHOD.'
)


def parse(argv: list[str]) -> list[str]:
  """Absl's parser, with a default config and mistakes as `ConfigError`."""
  if not any(arg.lstrip('-').split('=')[0] == 'config' for arg in argv):
    argv = [argv[0], f'--config={_DEFAULT}', *argv[1:]]
  try:
    rest = flags.FLAGS(argv)
    check(_CONFIG.value)  # A file that could not be loaded raises here.
  except (AttributeError, KeyError) as error:  # From a locked config.
    name, *hint = str(error.args[0].args[0]).split('\n')
    flag = [arg for arg in argv if name.strip("'") in arg.split('=')[0]]
    message = '; '.join([f'{flag[0]}: this config has no such field', *hint])
    raise ConfigError(message) from error
  except OSError as error:
    raise ConfigError(f'--config: {error.__cause__}') from error
  except flags.Error as error:
    raise ConfigError(str(error)) from error
  if rest[1:]:
    raise ConfigError(f'{rest[1]!r} is not a flag')
  return rest


def main(argv: list[str]) -> None:
  """Sets up the devices, trains, and prints what came of it."""
  del argv
  config = _CONFIG.value
  name = pathlib.Path(config_flags.get_config_filename(flags.FLAGS['config']))
  workdir = _WORKDIR.value or f'runs/{name.stem}-{config.sync.method}'
  logging.set_verbosity(logging.WARNING)
  if config.mapper == 'pmap':
    workers.make_devices(config.workers)
  # This imports TensorFlow, which a mistake need not wait for.
  from selsync_jax import trainer

  workdir = pathlib.Path(workdir)
  summary = trainer.train_and_evaluate(config, workdir)
  from selsync_jax import report  # And this what draws its figures.

  report.show(summary)
  print(report.write([workdir], workdir))


if __name__ == '__main__':
  # jaxlib 0.10 hangs on a machine with few cores unless its pool is larger.
  os.environ.setdefault('PJRT_NPROC', '16')
  # TensorFlow only reads data here; what it says of its kernels is noise.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
  try:
    app.run(main, flags_parser=parse)
  except ConfigError as error:
    print(f'train.py: {error}', file=sys.stderr)
    sys.exit(2)
  except NonFiniteError as error:
    print(f'train.py: {error}', file=sys.stderr)
    sys.exit(1)
