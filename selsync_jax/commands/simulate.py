"""Train on a virtual cluster whose workers are unequally fast.

Data, model, optimizer and gradients are the same as in `train`, but a virtual
clock determines how long each worker computes, waits and communicates. All
methods of `train` work, and asynchronous ones, too.

  selsync simulate --config=configs/digits.py:asp
"""

from collections.abc import Sequence

from selsync_jax.commands import config_file, silence_orbax, train


def main(arguments: Sequence[str]) -> None:
  """Simulates the run, and prints the summary."""
  options = train.command_line('simulate', 'simulate-').parse(arguments)
  options.fields[:0] = config_file.SIMULATED
  train.load(options)
  train.handle_signals(options)
  silence_orbax()
  from selsync_jax.devices import backend

  backend.start(options.settings.config.device)
  # Importing TensorFlow is slow; mistakes in the config were reported above.
  from selsync_jax.simulate import run

  summary = run.simulate(
    options.settings,
    options.workdir,
    restart=options.restart,
    accept_changes=options.accept_changes,
  )
  train.show(summary, options.workdir, options.report)
