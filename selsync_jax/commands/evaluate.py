"""Score the weights of a run on its validation or test data.

It needs only one device.

  selsync evaluate runs/digits-selsync --step=best --split=test
"""

from collections.abc import Sequence

from selsync_jax.commands import config_file
from selsync_jax.commands import flags
from selsync_jax.commands import silence_orbax
from selsync_jax.commands import weights_line


def main(arguments: Sequence[str]) -> None:
  """Prints the scores.

  Raises:
    ConfigError: if there is a mistake on the command line, or the run's data
      are missing.
    RunError: if the weights are damaged.
  """
  line = weights_line.command_line('evaluate')
  words = 'validation or test'
  split = flags.reader(str, words, ('validation', 'test').__contains__)
  line.flag('split', split, 'validation', f'{words}.')
  line.flag(
    'config',
    str,
    None,
    'The config file of the run, if it registers its model or data.',
  )
  line.switch(
    'accept_changes',
    False,
    "Score though the data or the model's code have changed since the run.",
  )
  options = line.parse(arguments)
  workdir = weights_line.workdir(options)
  silence_orbax()
  if options.config:
    config_file.load(options.config, ())
  weights_line.start_jax(workdir)
  from selsync_jax.report import facts
  from selsync_jax.training import evaluation

  step, scores = evaluation.evaluate(
    workdir, options.step, options.split, options.accept_changes
  )
  print(f'{workdir}, step {step}')
  facts.show_table(scores)
