"""Score the weights of a run on its validation or test data.

It needs only one device.

  selsync evaluate runs/digits-selsync --step=best --split=test
"""

from collections.abc import Sequence
import pathlib

from selsync_jax.commands import config_file, export, flags


def main(arguments: Sequence[str]) -> None:
  """Prints the scores."""
  line = export.command_line('evaluate')
  words = 'validation or test'
  split = flags.reader(str, words, ('validation', 'test').__contains__)
  line.flag('split', f'{words}.', split, 'validation')
  about = 'The config file of the run, if it registers its model or data.'
  line.flag('config', about)
  about = (
    "Score even if the data or the model's code have changed since the run."
  )
  line.switch('accept_changes', about)
  options = line.parse(arguments)
  workdir = pathlib.Path(*options.positional)
  if options.config:
    config_file.load(options.config, ())
  export.start_jax(workdir)
  from selsync_jax.report import facts
  from selsync_jax.training import evaluation

  step, scores = evaluation.evaluate(
    workdir, options.step, options.split, options.accept_changes
  )
  print(f'{workdir}, step {step}')
  facts.show(scores)
