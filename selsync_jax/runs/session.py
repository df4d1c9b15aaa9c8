"""A session of a run: all that one start of a command reads and writes."""

from collections.abc import Generator, Mapping
import contextlib
import dataclasses
import pathlib
from typing import Any

from selsync_jax import blame
from selsync_jax.cluster import processes
from selsync_jax.config import ConfigError
from selsync_jax.config import LostError
from selsync_jax.config import RunError
from selsync_jax.config import Stopped
from selsync_jax.runs import checkpoints
from selsync_jax.runs import files
from selsync_jax.runs import fingerprint
from selsync_jax.runs import output
from selsync_jax.runs import records
from selsync_jax.runs import workdir as workdirs
from selsync_jax.runs.ledger import Totals
from selsync_jax.runs.recording import Recording
from selsync_jax.runs.weights import Keeper


class Session(contextlib.ExitStack):
  """A run's folder, from the claim to the summary.

  The constructor only reads, so a mistake that is found before the context is
  entered leaves no trace. Inside the context the folder belongs to this run.
  Only the first process writes, except for checkpoints. See `workdir.opened`
  and `Checkpoints` for the arguments.
  """

  checkpoints: checkpoints.Checkpoints
  record: dict[str, Any] | None  # Of the checkpoint from which a run resumes.
  step: int  # The step of that checkpoint; 0 for a new run.
  weights: Keeper  # Only inside `recording`.
  is_first: bool  # Whether this is the process that writes.

  def __init__(
    self,
    workdir: pathlib.Path,
    config: Mapping[str, Any],
    *,
    restart: bool = False,
    patience: float = 60.0,
    choose: checkpoints.Choose = checkpoints.newest,
  ):
    super().__init__()
    self.workdir, self._config = workdir, config
    self._restart, self._patience = restart, patience
    self.is_first = processes.is_first()
    self.checkpoints = checkpoints.Checkpoints(workdir, restart, choose)
    self.record = record = self.checkpoints.record
    self.step = record['totals']['steps'] if record else 0
    self._seals = records.seals(record)

  def __enter__(self) -> 'Session':
    """Claims the folder, unless another run or process has it."""
    config, saved = self._config, self.record and self.record['config']
    with contextlib.ExitStack() as stack:
      claim = workdirs.opened(
        self.workdir, config, self._restart, saved, self._patience
      )
      stack.enter_context(claim)
      output.note_losses(self.workdir)
      stack.enter_context(self._explaining())
      keep = config['checkpoint']['keep']
      stack.enter_context(self.checkpoints.opened(keep))
      self.push(stack.pop_all())
    return self

  def say(self, line: str) -> None:
    """Prints a line in the first process."""
    if self.is_first:
      print(line)

  def identify(self, found: Mapping[str, Any], accept: bool) -> list[str]:
    """Returns the changes of data and model, before the context is entered.

    `found` is the fingerprint of this session. A change that is not accepted is
    a `ConfigError`; a damaged fingerprint is reported. Code may change that has
    trained nothing which is kept, and after an error, which an edit may mend.
    """
    self._fingerprint, self._changes = found, []
    # The first process soon removes them.
    mends = processes.json_from_first(any(self.workdir.glob('error*.txt')))
    may_edit = self.record is None or mends
    try:
      if not self._restart:
        about = self.workdir, found, accept, may_edit
        self._changes = fingerprint.check(*about)
    except ConfigError as error:
      raise ConfigError(f'{error}, or --restart') from error
    except files.DamagedFile as error:
      self.say(f'{error}; written again')
    return self._changes

  def outcome(self, totals: Totals, steps: int) -> dict[str, Any] | None:
    """Returns the summary of a finished run; reports a damaged one.

    A run is finished when its position in the data is `steps`.
    """
    # A network file system may show the others a summary later.
    own = self._summary() if self.is_first else None
    summary = processes.json_from_first(own)
    if totals.position < steps or not summary:
      return None
    if self.is_first:
      records.check_metrics(self.workdir, totals.steps, self._seals)
    self.say(f'{self.workdir} holds a finished run of {totals.steps} steps')
    return summary

  def _summary(self) -> dict[str, Any] | None:
    try:
      return records.read_summary(self.workdir)
    except files.DamagedFile as error:
      self.say(f'{error}; written again')
      return None

  @contextlib.contextmanager
  def recording(self) -> Generator[None]:
    """Lets `write` and `save` be called; drops what is after the checkpoint.

    An error that ends it names the last good checkpoint.
    """
    self.weights = Keeper(self.workdir, self.step)
    if self.is_first:
      fingerprint.write(self.workdir, self._fingerprint)
    self._recording = Recording(
      self.workdir, self._config, self.step, self._seals, self._changes
    )
    with self._recording:
      yield

  @contextlib.contextmanager
  def _explaining(self) -> Generator[None]:
    """Turns any error into a `RunError` that names the last checkpoint.

    The traceback of an error that we did not foresee, such as one of a user's
    own code, is kept in the folder.
    """
    name = f'error{processes.suffix()}.txt'
    if self.is_first:  # Also of processes that an earlier session had.
      for file in self.workdir.glob('error*.txt'):
        file.unlink(missing_ok=True)
    try:
      yield
    except (ConfigError, Stopped):
      raise
    except blame.RAISED as error:
      is_users = blame.is_users(error)
      if isinstance(error, RunError):
        reason = str(error)
      elif isinstance(error, OSError) and not is_users:
        reason = blame.of_file(error)
      else:
        reason = blame.one_line(error)
      if is_users or not isinstance(error, RunError | OSError):
        file = blame.keep(error, self.workdir, name)
        reason += f'; the whole traceback is in {file}'
      if hasattr(self, 'weights'):  # The run was recorded.
        reason += f'; last good checkpoint: {self.checkpoints.newest}'
      kind = LostError if isinstance(error, LostError) else RunError
      raise kind(reason) from error

  def write(self, row: Mapping[str, Any]) -> None:
    """Writes a step's row, see `Recording`."""
    self._recording.write(row)

  def new_record(self, totals: Totals, **about: Any) -> dict[str, Any]:
    """Returns the record of a checkpoint; `about` are more fields, as JSON."""
    return {
      'totals': dataclasses.asdict(totals),
      'metrics': self._recording.seal(),
      'config': self._config,
      **about,
    }

  def finish(self, results: dict[str, Any]) -> dict[str, Any]:
    """Writes and returns the summary, see `Recording`."""
    return self._recording.finish(results)
