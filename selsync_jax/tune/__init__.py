"""A search over recipes: a method, its parts, and their settings.

`space` has the choices and `objective` the goal. `curves` reads the scores and
costs of runs, `attempt` decides when a run ends, and `search` keeps the trials
in a study of Optuna.
"""

from selsync_jax.config import ConfigError

try:
  import optuna as optuna
except ModuleNotFoundError as error:
  raise ConfigError(f"{error}; pip install 'selsync-jax[tune]'") from error
