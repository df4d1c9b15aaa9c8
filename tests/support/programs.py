"""The collectives that a compiled program sends, read from its text."""

import re
from typing import NamedTuple

import numpy as np


class Sent(NamedTuple):
  """A collective of a compiled program.

  Attributes:
    kind: XLA's name of the collective.
    dtype: XLA's name of the operand's dtype.
    elements: number of elements of its operand on one device.
    crosses: whether it leaves a worker.
    conditional: whether it is in a branch.
  """

  kind: str
  dtype: str
  elements: int
  crosses: bool
  conditional: bool


_KINDS = (
  'all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|'
  'collective-broadcast'
)


def collectives(text: str, devices_per_worker: int = 1) -> list[Sent]:
  """The collectives of a compiled program.

  Args:
    text: the program, as `compiled.as_text()`.
    devices_per_worker: number of consecutive devices of a worker.
  """
  bodies = _computations(text)
  branches = set(re.findall(r'(?:true|false)_computation=%?([\w.\-]+)', text))
  for group in re.findall(r'branch_computations=\{([^}]*)\}', text):
    branches |= set(re.findall(r'%?([\w.\-]+)', group))
  (entry,) = (name for name, (is_entry, _) in bodies.items() if is_entry)
  inside = set().union(*(_reachable(bodies, b) for b in branches))
  outside = _reachable(bodies, entry, skip=branches)
  return [
    sent
    for names, conditional in ((outside, False), (inside, True))
    for name in sorted(names)
    for sent in _sent(bodies[name][1], devices_per_worker, conditional)
  ]


def _computations(text):
  """The bodies of a compiled module's computations, by name."""
  found = re.findall(
    r'^(ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}', text, re.M | re.S
  )
  return {name: (bool(entry), body) for entry, name, body in found}


def _reachable(bodies, name, skip=()):
  """A computation and everything that it calls, without the skipped parts."""
  seen, stack = set(), [name]
  while stack:
    name = stack.pop()
    if name in seen or name not in bodies or name in skip:
      continue
    seen.add(name)
    stack += re.findall(r'%([\w.\-]+)', bodies[name][1])
  return seen


def _sent(body, devices_per_worker, conditional):
  types = dict(re.findall(r'%([\w.\-]+) = (.*?) [\w\-]+\(', body))
  for line in body.splitlines():
    found = re.search(rf' ({_KINDS})(?:-start)?\((.*?)\)', line)
    if found:
      crosses = _crosses(line, devices_per_worker)
      operands = []
      for operand in re.findall(r'%([\w.\-]+)', found[2]):
        ((dtype, shape),) = re.findall(r'(\w+)\[([\d,]*)\]', types[operand])
        elements = int(np.prod([int(d) for d in shape.split(',') if d]))
        operands.append((dtype, elements))
      if found[1] == 'all-to-all' and len(operands) > 1:
        # One message, with an operand for each receiver; one operand stays.
        (dtype, _), *others = operands
        operands = [(dtype, sum(elements for _, elements in others))]
      for operand in operands:
        yield Sent(found[1], *operand, crosses, conditional)


def _crosses(line, devices_per_worker):
  """Whether devices of different workers take part together."""
  if axes := re.search(r'replica_groups=mesh\[[^\]]*\] *\{([^}]*)\}', line):
    return 'workers' in axes[1]
  if iota := re.search(
    r'replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?', line
  ):
    shape = [int(n) for n in iota[3].split(',')]
    order = [int(n) for n in (iota[4] or '0').split(',')]
    devices = np.arange(np.prod(shape)).reshape(shape)
    if iota[4]:
      devices = devices.transpose(order)
    groups = devices.reshape(int(iota[1]), int(iota[2])).tolist()
  else:
    listed = re.search(
      r'(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}', line
    )
    assert listed, line
    groups = [
      [int(n) for n in group.split(',')]
      for group in re.findall(r'\{([\d,]+)\}', listed[1])
    ]
  return any(len({d // devices_per_worker for d in g}) > 1 for g in groups)
