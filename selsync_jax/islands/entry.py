"""How an island of the trainer joins and leaves the others."""

from collections.abc import Generator, Mapping
import contextlib
import pathlib
from typing import Any

from selsync_jax.devices.slices import Slices
from selsync_jax.islands import led, rounds
from selsync_jax.islands.credentials import Invitation
from selsync_jax.islands.mapper import IslandMapper
from selsync_jax.islands.participants import IslandParticipants
from selsync_jax.training.settings import Settings

_OWN = 'config.mapper', 'config.mesh.'  # Islands may differ in these fields.


@contextlib.contextmanager
def joined(
  name: str,
  invitation: str,
  settings: Settings,
  workdir: pathlib.Path,
  agreed: Mapping[str, Any],
  timeout: float,
  port: int = 0,
  restart: bool = False,
) -> Generator[IslandParticipants]:
  """Joins the other islands, and leaves them when the context ends.

  Args:
    name: name of this island.
    invitation: the coordinator's invitation, as text.
    settings: settings of the run.
    workdir: folder of this island's run.
    agreed: values that must be equal on all islands, by name.
    timeout: see `joining.join`.
    port: see `joining.join`.
    restart: whether to ignore the slot that the island had before.
  """
  alike = {k: v for k, v in agreed.items() if not k.startswith(_OWN)}
  slot = None if restart else rounds.slot(workdir, name)
  with led.join(
    Invitation.parse(invitation),
    name,
    alike,
    timeout,
    port=port,
    welcomes=True,
    slot=slot,
    say=print,
  ) as peers:
    config = settings.config
    mapper = IslandMapper(config.workers, peers, Slices(1, **config.mesh))
    yield IslandParticipants(mapper, rounds.Rounds(workdir))
