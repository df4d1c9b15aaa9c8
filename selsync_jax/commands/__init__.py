"""The command line, with a module for each command.

`main(arguments)` of a module runs its command; `python -m selsync_jax` is the
entry point of all commands.
"""

import logging
import sys
import threading

COMMANDS = {
  'train': 'Train a model with N workers.',
  'compare': 'Train several methods with several seeds, and compare them.',
  'simulate': 'Train on a virtual cluster whose workers are unequally fast.',
  'tune': 'Search for the method and settings that serve a network best.',
  'plan': 'Estimate the time that each method saves on a given network.',
  'report': 'Write a page with tables and figures of one or more runs.',
  'export': 'Write the weights of a run into one file, for any program.',
  'evaluate': 'Score the weights of a run on its validation or test data.',
  'launch': 'Start the processes, or the islands, of a run on this machine.',
  'meet': 'Serve the coordinator of islands, workers in separate programs.',
  'status': 'Show what the islands of a run are doing.',
  'replay': 'Repeat a run of islands in one process, and compare parameters.',
}


def silence_orbax() -> None:
  """Stops orbax and tensorstore from reporting what orbax also raises.

  When a save fails, threads would print its traceback, and every other pending
  write would print another one, because its event loop is closed.
  """
  from absl import logging as absl_logging  # Would slow down `--help`.

  absl_logging.set_verbosity(absl_logging.FATAL)
  logging.getLogger('asyncio').setLevel(logging.CRITICAL)
  show, show_thread = sys.unraisablehook, threading.excepthook

  def hook(unraisable):
    if str(unraisable.exc_value) != 'Event loop is closed':
      show(unraisable)

  def thread_hook(error):
    if not type(error.thread).__module__.startswith('orbax'):
      show_thread(error)

  sys.unraisablehook, threading.excepthook = hook, thread_hook
