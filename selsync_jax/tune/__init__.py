"""A search over recipes: a method, its parts, and all that goes with them.

`space` says what may be chosen, `objective` what is best, `curves` what runs
reach and cost, `judge` when they end, and `search` keeps the trials in a study
of Optuna.
"""

from selsync_jax.config import ConfigError

try:
  import optuna as optuna
except ModuleNotFoundError as error:
  raise ConfigError(f"{error}; pip install 'selsync-jax[tune]'") from error
