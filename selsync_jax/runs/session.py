"""A session of a run: all that one start of a command reads and writes."""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import pathlib
from typing import Any

from selsync_jax import blame
from selsync_jax.cluster import processes
from selsync_jax.config import ConfigError
from selsync_jax.config import RunError
from selsync_jax.config import Stopped
from selsync_jax.devices import layout
from selsync_jax.runs import files
from selsync_jax.runs import fingerprint
from selsync_jax.runs import history
from selsync_jax.runs import output
from selsync_jax.runs import provenance
from selsync_jax.runs import records
from selsync_jax.runs import workdir as workdirs
from selsync_jax.runs.checkpoints import Checkpoints
from selsync_jax.runs.ledger import Totals
from selsync_jax.runs.weights import Keeper
from selsync_jax.runs.writers import Writers


class Session:
  """A run's folder, from the claim to the summary.

  The constructor only reads, so a mistake that is found before the context is
  entered leaves no trace. Inside the context the folder belongs to this run.
  Only the first process writes, except for checkpoints.

  Args:
    workdir: the run's folder, which is created if it is missing.
    config: the run's config, as nested dicts.
    restart: whether to move a run in `workdir` aside first.
    accept_changes: whether to resume though data or model have changed.
    patience: seconds until every process must see process 0's files.

  Attributes:
    workdir: the run's folder.
    record: the record of the checkpoint from which the run resumes; `None` for
      a new run.
    is_first: whether this is the process that writes.

  Raises:
    RunError: if the run cannot be resumed.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    config: Mapping[str, Any],
    *,
    restart: bool = False,
    accept_changes: bool = False,
    patience: float = 60.0,
  ):
    self.workdir, self._config = workdir, config
    self._restart, self._patience = restart, patience
    self._accept_changes = accept_changes
    self.is_first = processes.is_first()
    keep = config['checkpoint']['keep']
    self._checkpoints = Checkpoints(workdir, keep, config, restart)
    self.record = self._checkpoints.record
    self._seals = records.seals(self.record)
    self._keeper: Keeper | None = None
    self._open = contextlib.ExitStack()

  def __enter__(self) -> 'Session':
    """Claims the folder.

    Raises:
      ConfigError: if it belongs to another run or process, or cannot be
        written.
    """
    with contextlib.ExitStack() as stack:
      saved = self.record and self.record['config']
      stack.enter_context(
        workdirs.opened(
          self.workdir, self._config, self._restart, saved, self._patience
        )
      )
      output.note_losses(self.workdir)
      stack.enter_context(self._explaining())
      stack.enter_context(self._checkpoints)
      self._open = stack.pop_all()
    return self

  def __exit__(self, *exc: Any) -> bool | None:
    return self._open.__exit__(*exc)

  def say(self, line: str) -> None:
    """Prints a line in the first process."""
    if self.is_first:
      print(line)

  def identify(self, found: Mapping[str, Any]) -> list[str]:
    """Compares data and model with those of the run, before the context.

    Args:
      found: the fingerprint of this session.

    Returns:
      The accepted changes.

    Raises:
      ConfigError: if they differ, unless changes are accepted.
    """
    self._fingerprint, self._changes = found, []
    if not self._restart:
      accept = self._accept_changes
      self._changes = fingerprint.check(self.workdir, found, accept)
    return self._changes

  def write_data(self, facts: Mapping[str, Any]) -> None:
    """Writes facts about the data, and the fingerprint."""
    if self.is_first:
      records.write_data(self.workdir, facts)
      fingerprint.write(self.workdir, self._fingerprint)

  def outcome(self, totals: Totals, steps: int) -> dict[str, Any] | None:
    """Returns the summary of a finished run; reports a damaged one.

    Args:
      totals: the run's totals so far.
      steps: the position in the data after the run's last step.
    """
    try:
      summary = records.read_summary(self.workdir)
    except files.DamagedFile as error:
      self.say(f'{error}; written again')
      return None
    if totals.position < steps or not summary:
      return None
    if self.is_first:
      records.check_metrics(self.workdir, totals.steps, self._seals)
    self.say(f'{self.workdir} holds a finished run of {totals.steps} steps')
    return summary

  def restore(self, like: Any) -> Any:
    """Returns the saved state, see `Checkpoints.restore`."""
    assert self.record is not None, 'a new run has nothing to restore'
    return self._checkpoints.restore(self.record['totals']['steps'], like)

  @contextlib.contextmanager
  def recording(self, step: int) -> Iterator[None]:
    """Lets `write`, `keep` and `save` be called inside the context.

    An error that ends it names the last good checkpoint.

    Args:
      step: the last step so far; rows and weights of later ones are removed.
    """
    self._keeper = Keeper(self.workdir, step)
    with contextlib.ExitStack() as stack:
      self._writers = None
      if self.is_first:
        provenance.append(self.workdir, step, layout.describe(), self._changes)
        writers = Writers(self.workdir, self._config, step, self._seals)
        self._writers = stack.enter_context(writers)
        # There is a summary if a finished run was extended, or lost its newest
        # checkpoint.
        if (self.workdir / records.SUMMARY).exists():
          records.write_config(self.workdir, self._config)
          (self.workdir / records.SUMMARY).unlink()
      yield

  @contextlib.contextmanager
  def _explaining(self) -> Iterator[None]:
    """Turns any error into a `RunError` that names the last checkpoint.

    The traceback of an error that we did not foresee, such as one of a user's
    own code, is kept in the folder.
    """
    name = f'error{processes.suffix()}.txt'
    (self.workdir / name).unlink(missing_ok=True)  # An earlier session's.
    try:
      yield
    except (ConfigError, Stopped):
      raise
    except (Exception, SystemExit, GeneratorExit) as error:
      reason = str(error)
      is_own = blame.is_users(error)
      is_foreseen = isinstance(error, RunError | OSError)
      if isinstance(error, OSError) and error.filename and not is_own:
        reason = f'{error.filename}: {error.strerror}'
      elif not isinstance(error, RunError) and (is_own or not is_foreseen):
        reason = blame.one_line(error)
      if is_own or not is_foreseen:
        file = blame.keep(error, self.workdir, name)
        reason += f'; the whole traceback is in {file}'
      if self._keeper:
        reason += f'; last good checkpoint: {self._checkpoints.newest}'
      raise RunError(reason) from error

  def write(self, row: Mapping[str, Any]) -> None:
    """Writes a step's row if it has scores or `config.log.every` selects it."""
    is_due = row['step'] % self._config['log']['every'] == 0
    if self._writers and (is_due or any(map(history.is_score, row))):
      self._writers.write(row)

  def keep(
    self,
    step: int,
    mean: Mapping[str, Any],
    scores: Mapping[str, float],
    is_last: bool,
  ) -> None:
    """Keeps a consensus if it is the best or the last, see `Keeper.keep`."""
    assert self._keeper, 'only while the run is recorded'
    self._keeper.keep(step, mean, scores, is_last)

  def save(
    self,
    totals: Totals,
    state: Any,
    about: Mapping[str, Any],
    scores: Mapping[str, float],
  ) -> None:
    """Starts a checkpoint; returns as soon as the state may be changed again.

    Args:
      totals: the run's totals so far.
      state: what `restore` will return.
      about: more fields of the record, as JSON.
      scores: the scores of the consensus; empty if it was not evaluated.
    """
    loss = scores.get('validation_loss')
    record = self._record(totals, about)
    self._checkpoints.save(totals.steps, state, record, loss)

  def rehearse(
    self, totals: Totals, state: Any, about: Mapping[str, Any]
  ) -> None:
    """Writes the first checkpoint, reads it back, and removes it.

    Raises:
      RunError: if it cannot be saved.
    """
    self._checkpoints.rehearse(state, self._record(totals, about))

  def _record(self, totals: Totals, about: Mapping[str, Any]) -> dict[str, Any]:
    seals = self._writers.seal() if self._writers else records.NO_ROWS
    return {'totals': dataclasses.asdict(totals), 'metrics': seals, **about}

  def check(self) -> None:
    """Raises the error of the last save in the background; never waits."""
    self._checkpoints.check()

  def wait(self) -> None:
    """Returns when the last checkpoint is complete; raises its error."""
    self._checkpoints.wait()

  def finish(self, results: Mapping[str, Any]) -> dict[str, Any]:
    """Writes and returns the summary: the results, method, workers and seed."""
    summary = {
      'method': history.composition(self._config['sync']),
      'workers': self._config['workers'],
      'seed': self._config['seed'],
      **results,
    }
    if self.is_first:
      records.write_summary(self.workdir, summary)
    return summary
