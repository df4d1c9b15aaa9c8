"""Shows the outcome of a command that writes a run."""

from collections.abc import Mapping
import pathlib
from typing import Any


def show(
  summary: Mapping[str, Any], workdir: pathlib.Path, report: bool = True
) -> None:
  """Prints the summary of a run, and writes its page if `report` is set."""
  from selsync_jax.report import facts

  facts.show(summary)
  if report:
    from selsync_jax.report import run_page  # Imports matplotlib.

    print(run_page.write([workdir], workdir))
