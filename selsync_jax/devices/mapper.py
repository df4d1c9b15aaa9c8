"""What every mapper can do: one worker's function over all workers.

State is worker-stacked: every leaf has a leading axis of workers, because
between synchronizations workers really differ. A mapper runs one worker's
function over all rows, and places the rows where its results lie.
"""

import abc
from collections.abc import Callable, Iterator, Mapping
import dataclasses
import pathlib
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.sharding import Sharding
import numpy as np

from selsync_jax.cluster import processes
from selsync_jax.cluster.agreement import Agreement
from selsync_jax.config import ConfigError
from selsync_jax.data.protocol import Batch
from selsync_jax.data.protocol import Data
from selsync_jax.devices import arrays
from selsync_jax.sync.averagers import Delay

Function = Callable[..., Any]
Donated = tuple[int, ...]
"""The arguments whose memory a compiled function may take for its result."""


@runtime_checkable
class Elastic(Protocol):
  """What lets programs come while others train; they share no files."""

  @property
  def prepares(self) -> bool:
    """Whether the others train already, and have not let this program in."""
    ...

  @property
  def admits(self) -> bool:
    """Whether programs wait for `welcome`, to come or to leave.

    It is the same everywhere, after the same step.
    """
    ...

  def choose(self, found: Iterator[pathlib.Path]) -> Any:
    """Goes among the others; chooses the checkpoint from which all go on.

    See `runs.checkpoints.Choose`.
    """

  def welcome(
    self, step: int, save: Callable[[], pathlib.Path], digest: bytes
  ) -> None:
    """Lets in who comes, and lets go who leaves, in all when it `admits`.

    Args:
      step: that from which they go on, after which all are now.
      save: saves its checkpoint, and returns the folder.
      digest: what these compare with their own; see `Mapper.digests`.
    """


@dataclasses.dataclass(frozen=True)
class Mapper(abc.ABC):
  """How the workers share the devices.

  Attributes:
    workers: N, the number of workers of all processes.
    name: the mapper's name in a config.
    compiles: whether `replicate` and `compute` compile the function they get.
  """

  workers: int
  name: ClassVar[str]
  compiles: ClassVar[bool] = False

  @property
  def is_free(self) -> bool:
    """Whether workers keep their own pace."""
    return False

  @property
  def devices_per_worker(self) -> int:
    """The number of devices inside a worker."""
    return 1

  @property
  def local(self) -> range:
    """The indices of the workers that this program runs."""
    return processes.local_workers(self.workers)

  @property
  def held(self) -> range:
    """The indices of the workers whose rows this program's arrays have."""
    return self.local

  @property
  def places(self) -> tuple[range, int]:
    """Those of this program's workers in an evaluation, and how many it has."""
    return self.local, self.workers

  @property
  def elastic(self) -> Elastic | None:
    """What lets programs come and go while others train, if anything does."""
    return None

  @property
  def programs(self) -> int:
    """The number of programs that run the workers."""
    return jax.process_count()

  @property
  def agreement(self) -> Agreement:
    """This program's part in the step after which all stop."""
    return processes.agreement()

  def batches(
    self,
    data: Data,
    start: int,
    stop: int,
    record: Mapping[str, Any] | None = None,
  ) -> Iterator[Batch]:
    """Yields what this program's workers read at steps `start` to `stop - 1`.

    `record` is that of the checkpoint from which the run goes on, if it does.
    """
    del record
    return data.batches(self.local, start, stop)

  @property
  def kept(self) -> dict[str, Any]:
    """What a mapper needs of a checkpoint's record, for JSON."""
    return {}

  @abc.abstractmethod
  def map_workers(self, fn: Function, donate: Donated = ()) -> Function:
    """Compiles `fn` of one worker for arrays with a leading axis of workers.

    Its collectives are over `AXIS`.
    """

  def map_steps(self, step: Function, delay: Delay | None) -> Function:
    """Maps a training step of one worker; it donates the state.

    Args:
      step: `step(state, batch) -> (state, metrics)`.
      delay: that of its averager, for a mapper that
        carries it itself.
    """
    del delay
    return self.map_workers(step, donate=(0,))

  def alone(self, fn: Function) -> Function:
    """Returns what a mapped function calls in place of `fn`.

    `fn` is a part of it that has no collectives.
    """
    return fn

  @abc.abstractmethod
  def sharding(self, shape: tuple[int, ...]) -> Sharding:
    """Returns where a result [workers, ...] of a mapped function lies."""

  def place(self, tree: Any) -> Any:
    """Places host arrays [this process's workers, ...] on the devices.

    They pass through a mapped program, so that they are laid out as its
    results are. State placed in another way would make the first step compile
    twice.
    """
    return self.map_workers(lambda tree: tree)(tree)

  def stack(self, tree: Any) -> Any:
    """Stacks one worker's `tree` for all workers held: they start equal."""
    count = len(self.held)
    return jax.tree.map(
      lambda x: np.broadcast_to(np.asarray(x), (count, *np.shape(x))), tree
    )

  def compute(
    self, fn: Function, *args: Any, compiler_options: Any = None
  ) -> Any:
    """Returns the state [held workers, ...] that `fn` makes, on its devices.

    A mapper that compiles `fn` takes the compiler options of `jax.jit`.
    """
    del compiler_options
    return self.place(fn(*args))

  def replicate(
    self, init: Function, *args: Any, compiler_options: Any = None
  ) -> Any:
    """Returns the state of all workers held, each as `init(*args)` makes it.

    The arguments are arrays of one worker, on the host.
    """
    return self.compute(
      lambda *args: self.stack(init(*args)),
      *args,
      compiler_options=compiler_options,
    )

  def abstract(self, tree: Any) -> Any:
    """Returns the shapes of one worker's `tree` stacked, with shardings.

    The shardings are those of a mapped function's results: state that is
    restored with them needs no pass through the devices, and the first step
    does not compile a second time for it.
    """
    return split(abstract(tree, len(self.held)), self.sharding)

  def abstract_saved(self, tree: Any, workers: int) -> Any:
    """Returns the shapes in which to read another number of workers' state.

    Those without a sharding are read into the host's memory.
    """
    return abstract(tree, workers)

  def gather(self, tree: Any) -> Any:
    """Gathers host arrays [..., local workers] to [..., workers]."""
    return arrays.gather(tree, self.workers)

  def digests(self, digest: bytes) -> dict[str, bytes]:
    """Returns the digest that each program has of something, by its name."""
    return processes.digests(digest)

  def check(self) -> None:
    """Raises `ConfigError` if the devices cannot hold the workers."""
    programs, devices = jax.process_count(), jax.device_count()
    inside = self.devices_per_worker
    each, way = 'one device', '--config.mapper=auto'
    if inside > 1:
      each, way = f'{inside} devices', 'a smaller mesh.data or mesh.fsdp'
    if devices < self.workers * inside:
      raise ConfigError(
        f'config.workers={self.workers}: mapper {self.name} needs {each} per '
        f'worker, and there are {devices} ({jax.default_backend()}); '
        f'use fewer workers, or {way}'
      )
    if programs > 1 and devices != self.workers * inside:
      raise ConfigError(
        f'config.workers={self.workers}: with {programs} processes, workers '
        f'with {each} each must use all {devices} devices'
      )


def abstract(tree: Any, count: int) -> Any:
  """Returns the shapes of one worker's `tree` stacked over `count` workers."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((count, *jnp.shape(x)), jnp.result_type(x)),
    tree,
  )


def split(shapes: Any, sharding: Callable[[tuple[int, ...]], Sharding]) -> Any:
  """Gives `jax.ShapeDtypeStruct`s the sharding that belongs to their shape."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=sharding(x.shape)
    ),
    shapes,
  )
