"""Trains every method of a checkout briefly; `stress.unchanged` runs this.

  python stress/every_method.py FOLDER '{"steps": 60, ...}'

The working directory is the checkout, which may be an earlier commit, so this
file uses only long-standing parts: the table of methods, the configs, and
`train_and_evaluate`. Writes a run into FOLDER/WORKLOAD/METHOD/SEED; a run that
fails leaves a file `error` there.
"""

import contextlib
import importlib
import io
import json
import pathlib
import sys

from absl import logging
import jax

from selsync_jax import methods
from selsync_jax.training.train import train_and_evaluate

# The config's module, its argument, and fields that shorten a run.
WORKLOADS = {
  'digits': ('digits', '{}', {'model.num_filters': 8}),
  'digits, numpy': (
    *('digits', '{}'),
    {'model.num_filters': 8, 'data.backend': 'numpy'},
  ),
  'stdlib_gpt': ('stdlib_gpt', '{},smoke', {}),
}


def train(
  workload: str, method: str, seed: int, steps: int, workdir: pathlib.Path
) -> None:
  """Trains on one device without printing."""
  name, argument, fields = WORKLOADS[workload]
  module = importlib.import_module(f'selsync_jax.configs.{name}')
  try:
    config = module.get_config(argument.format(method))
    config.update_from_flattened_dict(
      {'seed': seed, 'steps': steps, 'mapper': 'vmap', **fields}
    )
    with contextlib.redirect_stdout(io.StringIO()):
      train_and_evaluate(config, workdir)
  except Exception as error:  # The other runs are still wanted.
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / 'error').write_text(f'{type(error).__name__}: {error}')
  jax.clear_caches()


def main() -> None:
  folder, options = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
  package = pathlib.Path(methods.__file__)
  assert package.is_relative_to(pathlib.Path.cwd()), package
  logging.set_verbosity(logging.FATAL)
  for workload in options['workloads']:
    for method in methods.METHODS:
      if options['methods'] and method not in options['methods']:
        continue
      for seed in range(options['seeds']):
        workdir = folder / workload / method / str(seed)
        train(workload, method, seed, options['steps'], workdir)


if __name__ == '__main__':
  main()
