"""Cost of a quiet SelSync step with other ways to add up squares.

  python -m benchmarks.speed.norms
  python -m benchmarks.speed.norms --workload 'decoder 124M'
  python -m benchmarks.speed.norms --tiny   # On a CPU.

`measure` adds up the squares of each array, and takes a branch that reads the
gradient again if float32 cannot hold them. The other ways show the cost of each
part; all but the last are wrong outside of float32's range. Prints the time of
a step that does not synchronize, and its ratio to a local step timed in turn.
The limit is 1. Writes norms.json.
"""

import statistics
from unittest import mock

import jax
import jax.numpy as jnp
import optax

from benchmarks import variants
from benchmarks.speed import accelerator_rows as rows
from benchmarks.speed import gaps
from benchmarks.table import report, Table
from selsync_jax.sync import change

SAFE, SCALE = 2.0**45, 2.0**90


def no_branch(grads):
  """Adds up the squares without checking float32's range."""
  return optax.tree.norm(grads, squared=True), jnp.int32(0)


def one_array(grads):
  """Adds up the squares of all arrays, joined into one."""
  flat = [g.ravel() for g in jax.tree.leaves(grads)]
  return no_branch(jnp.concatenate(flat))


def three_sums(grads):
  """One pass for every number (Blue, 1978): large, usual and small apart."""

  def sums(g):
    large, small = ~(jnp.abs(g) <= SAFE), jnp.abs(g) < 1 / SAFE
    usual = jnp.where(large | small, 0.0, g)
    parts = (
      jnp.where(large, g / SCALE, 0.0),
      usual,
      jnp.where(small, g * SCALE, 0.0),
    )
    return [jnp.sum(jnp.square(part)) for part in parts]

  each = zip(*map(sums, jax.tree.leaves(grads)), strict=True)
  large, usual, small = map(sum, each)
  is_large, is_usual = ~(large <= 0), usual > 0
  x = jnp.where(
    is_large,
    large + usual / SCALE / SCALE,
    jnp.where(is_usual, usual + small / SCALE / SCALE, small),
  )
  return x, jnp.where(is_large, 90, jnp.where(is_usual | (x == 0), 0, -90))


NORMS = {
  'as it is': change.squared_norm,
  'no branch': no_branch,
  'no branch, one array': one_array,
  'no branch, three sums': three_sums,
}


def main() -> None:
  parser = gaps.parser(__doc__, 'decoder 10M', 'norms.json')
  options = parser.parse_args()
  problem = gaps.problem_of(options)
  local = variants.Variant(None, 1, problem)
  runs = {'local step': local.run}
  quiet = variants.FIRST['SelSync, no synchronization']
  for name, norm in NORMS.items():
    with mock.patch.object(change, 'squared_norm', norm):
      runs[name] = variants.Variant(quiet, 1, problem).run
      runs[name](1)  # Traces with the replaced function.
  times = rows.seconds(runs, options.round)
  ms = {name: 1e3 * statistics.median(each) for name, each in times.items()}
  device = jax.devices()[0].device_kind
  cells = [
    [name, f'{each:.3f}', f'{each / ms["local step"]:.4f}']
    for name, each in ms.items()
  ]
  result = {'device': device, 'jax': jax.__version__, 'ms': ms}
  result['parameters'] = local.params
  title = f'{options.workload}, {options.dtype}, on {device}'
  report(options.out, result, Table(['', 'ms', 'of local'], cells, title))


if __name__ == '__main__':
  main()
