"""Score the weights of a run on its validation or test data.

One device is enough, however many workers the run had.

  selsync evaluate runs/digits-selsync --step=best --split=test
"""

from collections.abc import Sequence

from absl import logging

from selsync_jax.commands.weights_line import WeightsCommandLine


def _split(text: str) -> str:
  if text not in ('validation', 'test'):
    raise ValueError('must be validation or test')
  return text


def main(arguments: Sequence[str]) -> None:
  """Prints the scores.

  Raises:
    ConfigError: for a mistake on the command line, or if the data of the run
      are not there.
    RunError: if the weights are damaged.
  """
  line = WeightsCommandLine('evaluate')
  split = line.flag('split', _split, 'validation', 'validation or test.')
  workdir = line.folder(arguments)
  logging.set_verbosity(logging.FATAL)  # Orbax also logs what it raises.
  from selsync_jax.report import facts
  from selsync_jax.training import evaluation  # Imports JAX.

  step, scores = evaluation.evaluate(workdir, line.step.value, split.value)
  facts.show_scores(f'{workdir}, step {step}', scores)
