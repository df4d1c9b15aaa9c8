"""One worker of a run, in a custom training loop and a separate program."""

from collections.abc import Generator
import contextlib
import functools
import hashlib
import pathlib
import sys
import time
from typing import Any
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax

from selsync_jax import user_errors
from selsync_jax.array_names import by_name
from selsync_jax.config import RunError
from selsync_jax.data.leases import TERM
from selsync_jax.data.pace import Watch
from selsync_jax.devices.arrays import everywhere
from selsync_jax.islands import loop_state, placement, resuming
from selsync_jax.islands.behind import Behind, steps_of_travel
from selsync_jax.islands.loop_state import Copy, Load, Save, State
from selsync_jax.islands.peers import Peers
from selsync_jax.islands.program import complete, cut
from selsync_jax.islands.resuming import Chosen, Takers
from selsync_jax.sync.budget import with_travel
from selsync_jax.sync.delay import Delayed
from selsync_jax.sync.strategy import Strategy
from selsync_jax.sync.traffic import traffic

_ADVICE = (
  'give each island its own state of the same step, or give save and load, so '
  'that others get copies of the newest'
)


class Island:
  """One of several workers that share a network, but no JAX runtime.

  All islands step together: at every step they decide whether to synchronize,
  like the workers of one program. A mean that is `delayed` travels during later
  steps; islands wait for every other message, such as a vote. Each island may
  place its parameters freely, on one device or over a mesh. If its devices
  belong to several processes, all of these make the same calls.

  As a context manager, it tells the others at once if its loop fails.

  Args:
    peers: all islands, as returned by `join`.
    params: the parameters before the first step, equal on all islands; or
      saved with the `state`.
    strategy: a trigger and an averager.
    state: an earlier island's `state()`, to resume from.
    save: returns, as bytes, what the loop must hand over besides parameters:
      the optimizer's state, and whatever else the next step depends on.
      `after_step` calls it when an island joins, and `join` calls it.
    load: `load(params, content)` continues from another island's parameters
      and the content that its `save` has returned; `join` calls it.

  Raises:
    ValueError: if the strategy reduces gradients or changes the optimizer's
      state, because an island sees neither; if `state` is one of another
      strategy or number of islands; or if only one of `save` and `load` is
      given, or `save` does not return bytes.
    RunError: if an island starts with other parameters, or from another step
      and without `load`; if a copy does not load; from any method, if another
      island does not answer.
  """

  def __init__(
    self,
    peers: Peers,
    params: Any,
    strategy: Strategy,
    *,
    state: Any = None,
    save: Save | None = None,
    load: Load | None = None,
  ):
    _check_strategy(strategy)
    trigger, averager = strategy.trigger, strategy.averager
    averager.check(peers.size)
    peers.shows(by_name(params))
    islands = len(peers.slots)  # Equal on all islands, even if some join late.
    sends = strategy.sends({'params': params, 'model_state': {}}, islands)
    trigger = trigger.with_traffic(traffic(sends, params, islands))

    def step(before, params, grads, states):
      triggered, averaged = states
      applied = optax.tree.sub(params, before)
      updated: Any = trigger.update(grads, triggered, before, applied=applied)[
        1
      ]
      departs, params, averaged = averager.departing_step(
        updated.sync, params, averaged
      )
      return departs, params, (updated, averaged)

    self._step, self._land = cut(step), cut(averager.land)
    self._peers, self._behind, self._taken = peers, None, 0
    self._save, self._load, self._members = save, load, 0
    self._has_left = False
    if isinstance(averager, Delayed):
      peers.late = self._behind = Behind(peers, averager)
    self._trigger, self._averager = trigger, averager
    self._watch, self._ended = Watch(), 0.0
    with jax.set_mesh(placement.NO_MESH):
      self._params = placement.plain(placement.placed_as(params, params))
      # Compiled, so that all of it lies where the parameters do. With states
      # elsewhere, the second average would compile again.
      self._states: Any = jax.jit(
        lambda params: (trigger.init(params), averager.init(params))
      )(self._params)
    before = None if state is None else self._state.replaced(state)
    if peers.prepares:
      self._prepare(params)
      peers.enter()
    self._begin(params, before)

  @classmethod
  def join(
    cls,
    invitation: str,
    name: str,
    params: Any,
    strategy: Strategy,
    *,
    state: Any = None,
    save: Save | None = None,
    load: Load | None = None,
    timeout: float = 60.0,
    limit: float | None = None,
    port: int = 0,
    relay: bool = False,
    audit: pathlib.Path | None = None,
  ) -> 'Island':
    """Waits until all islands have joined, and returns this one.

    With `save` and `load` it may join islands that train. It compiles, and they
    admit it after their next average, or within 100 steps. Then it continues
    from another island's state. It tries `load` with its own `save` before.

    Later it says on stderr for which islands it waits, and where, and which
    ones have sent unusual values.

    Args:
      invitation: line that `selsync meet` prints.
      name: name of this island, unique in the run. Workers are in the order of
        the names as text: `10` is before `2`.
      params: see the class.
      strategy: see the class.
      state: see the class. An island that joins others that train, or whose
        state is older than another's, gets a copy of the other's instead.
      save: see the class.
      load: see the class.
      timeout: seconds until an incomplete message is an error.
      limit: the most bytes per second that this island sends in messages, to
        leave bandwidth for others; `None` sets no limit. All islands may fetch
        from this one at once: 4 MiB for each must pass in twice the timeout.
      port: port at which the island's first process listens, for a firewall; 0
        is a free one.
      relay: whether all messages of this island pass through the coordinator.
        Otherwise, only those do that find no direct way.
      audit: file to which everything that this island sends is added, as by
        the flag `--audit`.

    Raises:
      ConfigError: if an argument is out of its range, or the port or the audit
        cannot be opened.
      RunError: if not enough islands join. If the others have finished the
        run meanwhile, its `code` is 0.
    """
    # This imports Arrow and cryptography.
    from selsync_jax.islands import joining

    _check_strategy(strategy)
    _check_params(params)
    if state is not None:
      loop_state.check(state, params, strategy)
    loop_state.check_functions(save, load)
    run: dict[str, Any] = {
      f'parameter {name}': (np.shape(x), str(x.dtype))
      for name, x in by_name(params).items()
    }
    run |= {'trigger': strategy.trigger, 'averager': strategy.averager}
    if save:
      run['save and load'] = 'given'
    invited = joining.Invitation.parse(invitation)
    say = functools.partial(print, file=sys.stderr)
    peers = joining.join(
      *(invited, name, run, timeout, limit, port, relay),
      welcomes=save is not None,
      say=say,
      audit=audit,
    )
    with contextlib.ExitStack() as stack:
      stack.push(peers)  # If this fails, the others hear of it at once.
      island = cls(peers, params, strategy, state=state, save=save, load=load)
      stack.pop_all()
    return island

  @property
  def index(self) -> int:
    """The index of this worker: which part of the data it reads."""
    return self._peers.index

  @property
  def size(self) -> int:
    """N, the number of workers."""
    return self._peers.size

  @property
  def step(self) -> int:
    """The number of steps that the islands have taken since the run's start."""
    return self._taken

  def state(self) -> dict[str, Any]:
    """Returns arrays by name, to save with the parameters; `join` takes them.

    They are the states of trigger and averager, such as a budget, an outer
    momentum, and averages in flight, and this island's place in the run. Each
    island saves its own, all after the same step.
    """
    return by_name(self._state)

  @property
  def _state(self) -> State:
    islands = len(self._peers.slots)
    return loop_state.state(self._taken, islands, self._members, self._states)

  def after_step(self, params: Any, grads: Any = None) -> Any:
    """Returns the parameters for the next step, averaged if an average is due.

    Args:
      params: a tree of arrays, after the local update.
      grads: a tree like `params`: the raw gradients, neither averaged nor
        clipped. Optional for triggers that measure none, like `every` or `fda`.

    Raises:
      ValueError: if the trigger measures gradients, and none are given; or if
        parameters or gradients are another tree than before.
      RunError: if an average is not finite; or if this island has left.
    """
    if self._has_left:
      raise RunError('after_step: this island has left; do not train on')
    _check_like('params', params, self._params)
    if grads is not None:
      _check_like('grads', grads, self._params, types=False)
    if grads is None and self._trigger.traits.meter:
      raise ValueError(
        f'grads=None: trigger {self._trigger} measures gradients'
      )
    if self._behind:
      self._behind.arrived = None
    with jax.set_mesh(placement.NO_MESH):
      departs, new, self._states = complete(
        self._peers,
        self._step,
        self._params,
        placement.plain(params),
        placement.plain(grads),
        self._states,
      )
      if self._behind and departs:
        self._behind.depart(self._states[1])
      if self._behind and self._trigger.traits.needs_travel:
        self._measure(self._behind, departs)
      averaged = departs
      if self._behind:
        averaged = self._behind.arrived is not None
      if averaged:
        self._peers.averaged()
        _check_finite(new, params, self._taken + 1)
      self._params, self._taken = new, self._taken + 1
      self._members = zlib.crc32('\n'.join(self._peers.names).encode())
      self._peers.reach(self._taken)
      returned = placement.placed_as(params, new)
    may_enter = averaged or self.size == 1 or self._taken % TERM == 0
    if self._peers.admits and may_enter:
      self._peers.admit()
      self._agree({self._taken: self._takers})
    return returned

  def _begin(self, params: Any, state: State | None) -> None:
    """Begins with all islands: from its state, a copy of another's, or new."""
    own = {}
    if state is not None and not self._peers.was_admitted:
      self._resume(state)
      own = {self._taken: self._takers}
    chosen = self._agree(own)
    if chosen.content is not None:
      self._copy(chosen, params)
    elif chosen.step < 0:
      _check_equal(self._peers, params)
    self._peers.reach(self._taken)

  @property
  def _takers(self) -> Takers:
    """The islands that must have this island's state, to resume from it.

    If islands load copies, one is enough.
    """
    return Takers(0 if self._load else self.size, line=self._members)

  def _agree(self, own: dict[int, Takers]) -> Chosen:
    """Agrees on the state from which all continue, and sends copies of it."""

    def pack(step: int) -> bytes:
      del step
      assert self._save
      content = loop_state.saved(self._save)
      with jax.set_mesh(placement.NO_MESH):
        return loop_state.pack(Copy(self._params, self._state, content))

    return complete(self._peers, resuming.agree, own, pack, _ADVICE)

  def _copy(self, chosen: Chosen, like: Any) -> None:
    """Continues from another island's state; `like` places the parameters."""
    assert self._load
    assert chosen.content is not None
    donor = chosen.copies[self._peers.names[self.index]]
    with _loading(f'the copy of island {donor}'):
      with jax.set_mesh(placement.NO_MESH):
        copy = loop_state.unpack(chosen.content, self._params, self._state)
        params = placement.placed_as(like, copy.params)
      self._load(params, copy.content)
    self._params = copy.params
    self._resume(copy.state)

  def _resume(self, state: State) -> None:
    self._taken, self._members = int(state.step), int(state.members)
    self._states = state.trigger, state.averager

  def _prepare(self, like: Any) -> None:
    """Compiles everything and tries `load`, while the others train."""
    assert self._save
    assert self._load
    params, peers, grads = self._params, self._peers, None
    if self._trigger.traits.meter:
      grads = optax.tree.zeros_like(params)
    with jax.set_mesh(placement.NO_MESH):
      _, _, (_, averaged) = complete(
        peers, self._step, params, params, grads, self._states
      )
      if self._behind:
        self._behind.depart(averaged)
      complete(peers, self._land, params, averaged)
      given = placement.placed_as(like, params)
    with _loading('what its own save returns'):
      self._load(given, loop_state.saved(self._save))

  def metrics(self) -> dict[str, Any]:
    """Returns what the trigger and the averager report, scalars by name."""
    triggered, averaged = self._states
    of_averager = self._averager.metrics(averaged)
    return {**of_averager, **self._trigger.metrics(triggered)}

  def _measure(self, behind: Behind, departs: Any) -> None:
    """Measures steps, and tells the trigger how long an average travels."""
    ended, now = self._ended, time.perf_counter()
    if behind.arrived is not None:
      triggered, averaged = self._states
      if steps := steps_of_travel(self._peers, self._watch, behind.watch):
        self._states = with_travel(triggered, steps), averaged
    elif not departs:
      self._watch.add(now - ended)
    self._ended = now

  def leave(self, params: Any) -> Any:
    """Returns the parameters, after applying averages still in flight.

    Waits until the others have fetched this island's messages, and closes the
    connections. All islands leave after the same step.
    """
    with jax.set_mesh(placement.NO_MESH):
      own = placement.plain(params), self._states[1]
      landed = complete(self._peers, self._land, *own)
      self._peers.close()
      self._has_left = True
      return placement.placed_as(params, landed)

  def __enter__(self) -> 'Island':
    return self

  def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
    """Leaves without averages in flight, unless this island has left.

    After an error, the others are told.
    """
    if not self._has_left:
      if self._behind and not kind:
        self._behind.settle()
      self._peers.__exit__(kind, error, trace)


def _check_strategy(strategy: Strategy) -> None:
  """Raises `ValueError` for a strategy that islands cannot follow."""
  strategy.check()
  if strategy.reducer.traits.reduces or strategy.optimizer_state.changes:
    raise ValueError(
      'islands support only no_reduction() and local(), not '
      f'{strategy.reducer} and {strategy.optimizer_state}'
    )


@contextlib.contextmanager
def _loading(what: str) -> Generator[None]:
  """Raises an error of a user's `load` again, in one line."""
  try:
    yield
  except Exception as error:
    line = user_errors.one_line(error)
    raise RunError(f'load: cannot load {what}: {line}') from error


def _check_params(params: Any) -> None:
  """Raises `ValueError` unless the parameters are arrays of numbers."""
  leaves = by_name(params)
  if not leaves:
    raise ValueError('params: the tree has no arrays')
  for name, x in leaves.items():
    if not (hasattr(x, 'dtype') and jnp.issubdtype(x.dtype, jnp.number)):
      found = getattr(x, 'dtype', type(x).__name__)
      raise ValueError(
        f'params: {name} is {found}; parameters must be arrays of numbers'
      )


def _check_like(name: str, tree: Any, like: Any, *, types: bool = True) -> None:
  """Raises `ValueError` unless two trees have arrays of the same form."""
  found, expected = by_name(tree), by_name(like)
  if len(found) != len(expected):
    odd = ', '.join(sorted({*found}.symmetric_difference(expected))[:5])
    raise ValueError(
      f'{name}: must have the {len(expected)} arrays of the parameters, got '
      f'{len(found)}; {odd} differs'
    )
  for (path, x), y in zip(found.items(), expected.values(), strict=True):
    own, its = (
      (list(np.shape(each)), getattr(each, 'dtype', None) if types else None)
      for each in (x, y)
    )
    if own != its:
      raise ValueError(
        f'{name}: {path} must be {its[1] or ""}{its[0]} as before, got '
        f'{own[1] or ""}{own[0]}'
      )


@jax.jit
def _is_finite(tree: Any) -> jax.Array:
  floats = [
    x for x in jax.tree.leaves(tree) if jnp.isdtype(x.dtype, 'real floating')
  ]
  return jnp.all(jnp.array([jnp.isfinite(x).all() for x in floats]))


def _check_finite(averaged: Any, before: Any, step: int) -> None:
  """Raises `RunError` if an average is not finite, and names the cause."""
  if _is_finite(averaged):
    return
  whose = "another island's are not finite"
  if not _is_finite(before):
    whose = "this island's are not finite"
  raise RunError(f'the average of parameters in step {step}: {whose}')


def _check_equal(peers: Peers, params: Any) -> None:
  """Raises `RunError` if not all islands have the same parameters."""
  digest = hashlib.sha256()
  for leaf in jax.tree.leaves(params):
    digest.update(np.asarray(everywhere(jnp.asarray(leaf))).tobytes())
  own = np.frombuffer(digest.digest(), np.uint8)
  others = complete(peers, lambda peers: peers.share(own))
  for name, other in zip(peers.names, others, strict=True):
    if (other != own).any():
      raise RunError(
        f'island {name} starts with other parameters than '
        f'{peers.names[peers.index]}; give all the same seed or weights, or to '
        'resume, each its own state'
      )
