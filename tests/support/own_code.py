"""Users' registrations, forgotten after a test."""

from collections.abc import Iterator
import contextlib
from unittest import mock

from selsync_jax import methods, models
from selsync_jax.data.sources import DATASETS
from selsync_jax.models import tasks
from selsync_jax.runs import writers


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
  """Forgets registrations made inside this context when it ends."""
  with contextlib.ExitStack() as tables:
    for table in (
      *(methods.METHODS, models.MODELS, tasks.TASKS, DATASETS),
      writers.WRITERS,
    ):
      tables.enter_context(mock.patch.dict(table))
    yield
