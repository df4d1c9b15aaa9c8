"""What users register: forgotten after a test."""

from collections.abc import Iterator
import contextlib
from unittest import mock

from selsync_jax import methods, models
from selsync_jax.data.sources import DATASETS
from selsync_jax.models import tasks
from selsync_jax.runs import writers


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
  """What is registered while this is entered is gone afterwards."""
  with contextlib.ExitStack() as tables:
    for table in (
      *(methods.METHODS, models.MODELS, tasks.TASKS, DATASETS),
      writers.WRITERS,
    ):
      tables.enter_context(mock.patch.dict(table))
    yield
