"""The store of a run: its folder, from the claim to the summary."""

from collections.abc import Generator, Mapping
import contextlib
import dataclasses
import pathlib
from typing import Any, TYPE_CHECKING

from selsync_jax import user_errors
from selsync_jax.cluster import processes
from selsync_jax.config import ConfigError, LostError, RunError, Stopped
from selsync_jax.devices import layout
from selsync_jax.runs import (
  files,
  fingerprint,
  history,
  provenance,
  records,
  writers,
)
from selsync_jax.runs import workdir as workdirs
from selsync_jax.runs.ledger import Totals

if TYPE_CHECKING:  # They import orbax, which a custom loop may not need.
  from selsync_jax.runs import checkpoints, weights


class Store(contextlib.ExitStack):
  """A run's folder, to which one session of the run adds.

  The constructor only reads, so a mistake that is found before the context is
  entered leaves no trace. Inside the context the folder belongs to this run,
  and `event` writes facts about the whole run. While the store is `recording`,
  `row` writes a step, `checkpoint` the state of all workers, and `weights` the
  consensus of the workers. Only the first process writes, except for
  checkpoints.

  Args:
    workdir: the run's folder.
    config: the resolved config, as nested dicts.
    step: the step that a custom loop resumes from, 0 for a new run. Such a loop
      saves its own checkpoints and weights, and explains its own errors. By
      default, a run resumes from its newest checkpoint.
    restart: whether to move a run in `workdir` aside first.
    patience: seconds until every process must see process 0's files.
    choose: see `Checkpoints`; by default, the newest checkpoint is chosen.
  """

  checkpoints: 'checkpoints.Checkpoints'  # Not of a custom loop.
  record: dict[str, Any] | None = None  # Of the checkpoint that is resumed.
  step: int  # The step of that checkpoint; 0 for a new run.
  is_first: bool  # Whether this is the process that writes.

  def __init__(
    self,
    workdir: pathlib.Path,
    config: Mapping[str, Any],
    step: int | None = None,
    *,
    restart: bool = False,
    patience: float = 60.0,
    choose: 'checkpoints.Choose | None' = None,
  ):
    super().__init__()
    self.workdir, self._config = workdir, config
    self._restart, self._patience = restart, patience
    self.is_first = processes.is_first()
    self._saves = step is None
    if step is None:
      from selsync_jax.runs import checkpoints

      choose = choose or checkpoints.newest
      self.checkpoints = checkpoints.Checkpoints(workdir, restart, choose)
      self.record = record = self.checkpoints.record
      step = record['totals']['steps'] if record else 0
    self.step = step
    self._fingerprint: Mapping[str, Any] = {}
    self._changes: list[str] = []
    self._rows: records.Rows | None = None
    self._copies: list[writers.Guarded] = []
    self._keeper: weights.Keeper | None = None

  def __enter__(self) -> 'Store':
    """Claims the folder, unless another run or process has it."""
    config, saved = self._config, self.record and self.record['config']
    with contextlib.ExitStack() as stack:
      claim = workdirs.opened(
        self.workdir, config, self._restart, saved, self._patience
      )
      stack.enter_context(claim)
      if self._saves:
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

    `found` is the fingerprint of this session. A change that is not accepted
    raises `ConfigError`; a damaged fingerprint is reported. Code may change if
    it has trained nothing that is kept, or after an error, which an edit may
    fix.
    """
    self._fingerprint = found
    # The first process soon removes them.
    mends = processes.json_from_first(any(self.workdir.glob('error*.txt')))
    may_edit = self.record is None or mends
    try:
      if not self._restart:
        self._changes = fingerprint.check(self.workdir, found, accept, may_edit)
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
      seals = records.seals(self.record)
      records.check_metrics(self.workdir, totals.steps, seals)
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
    """Adds this session to the run, and drops rows after its first step.

    `row`, `checkpoint` and `weights` are for this context. An error that ends
    it names the last good checkpoint.
    """
    workdir, config, step = self.workdir, self._config, self.step
    if self._saves:
      from selsync_jax.runs import weights

      self._keeper = weights.Keeper(workdir, step)
    with contextlib.ExitStack() as stack:
      if self.is_first:
        if self._fingerprint:
          fingerprint.write(workdir, self._fingerprint)
        provenance.append(workdir, step, layout.describe(), self._changes)
        # A custom loop saves its checkpoints without seals.
        seals = records.seals(self.record) if self._saves else None
        rows = records.Rows(workdir, step, seals)
        self._rows = stack.enter_context(rows)
        for name in config['log']['to']:
          copy = writers.Guarded(name, workdir, step, config)
          self._copies.append(stack.enter_context(copy))
        # There is a summary if a finished run was extended, or lost its newest
        # checkpoint.
        if (workdir / records.SUMMARY).exists():
          records.write_config(workdir, config)
          (workdir / records.SUMMARY).unlink()
      yield

  @contextlib.contextmanager
  def _explaining(self) -> Generator[None]:
    """Turns any error into a `RunError` that names the last checkpoint.

    The traceback of an unforeseen error, such as one in a user's code, is kept
    in the folder.
    """
    name = f'error{processes.suffix()}.txt'
    if self.is_first:  # Also of processes that an earlier session had.
      for file in self.workdir.glob('error*.txt'):
        file.unlink(missing_ok=True)
    try:
      yield
    except (ConfigError, Stopped):
      raise
    except user_errors.RAISED as error:
      is_users = user_errors.is_users(error)
      if isinstance(error, RunError):
        reason = str(error)
      elif isinstance(error, OSError) and not is_users:
        reason = user_errors.of_file(error)
      else:
        reason = user_errors.one_line(error)
      if is_users or not isinstance(error, RunError | OSError):
        file = user_errors.keep(error, self.workdir, name)
        reason += f'; the whole traceback is in {file}'
      if self._keeper:  # The run was recorded.
        reason += f'; last good checkpoint: {self.checkpoints.newest}'
      kind = LostError if isinstance(error, LostError) else RunError
      raise kind(reason) from error

  def row(self, row: Mapping[str, Any]) -> None:
    """Writes a step's row if it has scores or `config.log.every` selects it."""
    is_due = row['step'] % self._config['log']['every'] == 0
    if self._rows and (is_due or any(map(history.is_score, row))):
      for writer in (self._rows, *self._copies):
        writer.write(row)

  def seal(self) -> records.Seals:
    """Flushes the rows to disk and returns their seals."""
    return self._rows.seal() if self._rows else records.NO_ROWS

  def event(self, file: str, facts: Mapping[str, Any]) -> None:
    """Writes facts about the whole run: `records.DATA` or `records.SUMMARY`."""
    if self.is_first:
      records.write(self.workdir, file, facts)

  def checkpoint(self, state: Any, totals: Totals, **about: Any) -> None:
    """Starts a save of the workers' state; `about` are fields of the record.

    See `Checkpoints.save` for the state.
    """
    record = self._new_record(totals, about)
    self.checkpoints.save(totals.steps, state, record)

  def packed(self, state: Any, totals: Totals, **about: Any) -> bytes:
    """Returns the message of a `checkpoint`, without saving it."""
    from selsync_jax.runs import checkpoints

    return checkpoints.packed_state(state, self._new_record(totals, about))

  def rehearse(self, state: Any, totals: Totals, **about: Any) -> None:
    """Saves a new run before its first step, and removes this checkpoint.

    A state that cannot be saved is reported now, not after hours.
    """
    if self.record is None:
      self.checkpoints.rehearse(state, self._new_record(totals, about))

  def _new_record(
    self, totals: Totals, about: Mapping[str, Any]
  ) -> dict[str, Any]:
    return {
      'totals': dataclasses.asdict(totals),
      'metrics': self.seal(),
      'config': self._config,
      **about,
    }

  def weights(self, *about: Any) -> None:
    """Keeps the consensus of an evaluation, see `Keeper.keep`."""
    assert self._keeper is not None
    self._keeper.keep(*about)

  def finish(self, summary: dict[str, Any]) -> dict[str, Any]:
    """Writes and returns the summary."""
    self.event(records.SUMMARY, summary)
    return summary
