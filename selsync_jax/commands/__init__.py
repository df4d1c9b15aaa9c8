"""The command line, with a module for each command.

`main(arguments)` of a module runs its command; `python -m selsync_jax` is the
entry point of all commands.
"""

COMMANDS = {
  'train': 'Train a model with N workers.',
  'compare': 'Train several methods with several seeds, and compare them.',
  'simulate': 'Train on a virtual cluster whose workers are unequally fast.',
  'delta': 'Suggest a delta for a wanted LSSR.',
  'plan': 'Estimate the time that each method saves on a given network.',
  'report': 'Write a page with tables and figures of one or more runs.',
  'export': 'Write the weights of a run into one file, for any program.',
  'evaluate': 'Score the weights of a run on its validation or test data.',
  'launch': 'Start the processes of a run on this machine.',
}


def silence_orbax() -> None:
  """Stops orbax from logging what it also raises."""
  from absl import logging  # The import would slow down `--help`.

  logging.set_verbosity(logging.FATAL)
